"""Hashes of batches and rows, independent of the ones in the package."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any

_LENGTHS, _MASK = "_lengths", "_mask"


def batch_digest(batch: Mapping[str, Any]) -> str:
    """Return a hash of all fields: names, dtypes, shapes and every byte."""
    digest = hashlib.blake2b(digest_size=16)
    for name in sorted(batch):
        _update(digest, name)
        _update(digest, batch[name])
    return digest.hexdigest()


def row_digests(batch: Mapping[str, Any]) -> list[str]:
    """Return a hash of each valid row, without the padding that its neighbours caused."""
    padded = {name.removesuffix(_LENGTHS) for name in batch if name.endswith(_LENGTHS)}
    names = sorted(name for name in batch if name.removesuffix(_MASK) not in padded - {name})
    rows = []
    for row, valid in enumerate(batch["valid"].tolist()):
        if valid:
            digest = hashlib.blake2b(digest_size=16)
            for name in names:
                _update(digest, name)
                _update(digest, _unpadded(batch, name, row))
            rows.append(digest.hexdigest())
    return rows


def _unpadded(batch: Mapping[str, Any], name: str, row: int) -> Any:
    value = batch[name][row]
    if name + _LENGTHS not in batch:
        return value
    lengths = batch[name + _LENGTHS][row].reshape(-1).tolist()
    return value[tuple(slice(length) for length in lengths)]


def _update(digest: Any, value: Any) -> None:
    if hasattr(value, "numpy"):
        value = value.detach().cpu().contiguous().numpy()
    if hasattr(value, "tobytes"):
        digest.update(f"{value.dtype} {value.shape}".encode())
        digest.update(value.tobytes())
    elif isinstance(value, dict):
        for key in sorted(value):
            _update(digest, key)
            _update(digest, value[key])
    elif isinstance(value, (str, bytes, int, float, bool, type(None))):
        digest.update(f"{type(value).__name__} {value!r}".encode())
    else:  # a list, a tuple, or the keys of a batch
        items = list(value)
        digest.update(f"list {len(items)}".encode())
        for item in items:
            _update(digest, item)
