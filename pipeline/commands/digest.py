"""Hashes of batches, to compare the pixels, labels and order of two runs."""

from __future__ import annotations

import hashlib
from typing import Any

from penstock.core.sample import Batch, Keys


def batch_digest(batch: Batch) -> str:
    """Hash the names, dtypes, shapes and bytes of a batch."""
    digest = hashlib.blake2b(digest_size=16)
    for name in sorted(batch):
        digest.update(name.encode())
        _add(digest, batch[name])
    return digest.hexdigest()


def row_digests(batch: Batch) -> list[str]:
    """Hash each valid row of a batch, without the padding of ragged fields."""
    masks = {f"{name.removesuffix('_lengths')}_mask" for name in batch if name.endswith("_lengths")}
    rows = [row for row, valid in enumerate(batch["valid"].tolist()) if valid]
    names = batch.keys() - masks
    return [batch_digest({name: _unpadded(batch, name, row) for name in names}) for row in rows]


def _unpadded(batch: Batch, name: str, row: int) -> Any:
    if f"{name}_lengths" not in batch:
        return batch[name][row]
    lengths = batch[f"{name}_lengths"][row].reshape(-1).tolist()
    return batch[name][row][tuple(slice(length) for length in lengths)]


def _add(digest: Any, value: Any) -> None:
    if hasattr(value, "numpy"):
        value = value.detach().cpu().contiguous().numpy()
    if hasattr(value, "tobytes"):
        digest.update(f"{value.dtype} {value.shape}".encode())
        digest.update(value.tobytes())
    elif isinstance(value, dict):
        for key in sorted(value):
            digest.update(str(key).encode())
            _add(digest, value[key])
    elif isinstance(value, (list, tuple, Keys)):
        digest.update(f"list {len(value)}".encode())
        for item in value:
            _add(digest, item)
    else:
        digest.update(f"{type(value).__name__} {value!r}".encode())
