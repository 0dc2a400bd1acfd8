"""Decoders that learn from the data: always from its training part, once for a machine.

What scaling and vocabularies are made of belongs to the training part whatever split is opened.
So the validation data set opens the training part too (its index is in the cache) and takes what
was learned there; it is kept under the fingerprint of that part and the decoder's own recipe. The
config stays plain, no split waits for another, and every rank and worker has the same figures.
"""

from __future__ import annotations

import copy
import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from datasets.index_cache import cached_json
from datasets.protocols import Annotations, ColumnStorage, Decoder, FittedDecoder, Storage
from datasets.sample import Record
from datasets.splits import Split, StorageRecipe, open_split
from datasets.stages import DecodeStage

_CHUNK_ROWS = 4096
_PROBES = 256

D = TypeVar("D", bound=Decoder)


def fitted(
    decode: D,
    storage: StorageRecipe,
    *,
    opened: Storage,
    split: Split,
    val_fraction: float,
    keys: Mapping[str, str | None] | None,
    annotations: Annotations | None = None,
) -> D:
    """The decoder with what it learns from the training part; as it is, if it learns nothing.

    Args:
        decode: The decoder; a `FittedDecoder` that knows its statistics already keeps them.
        storage: How to open the storage of the whole.
        opened: The part that is open.
        split: Which one that is.
        val_fraction: See `open_split`.
        keys: New names of fields, see `DecodeStage`.
        annotations: See `open_split`.

    Raises:
        ValueError: The training part cannot be opened, or nothing can be learned from it.
    """
    if not isinstance(decode, FittedDecoder) or decode.statistics is not None:
        return decode
    train = opened
    if split != "train":
        train = open_split(
            storage, split="train", val_fraction=val_fraction, annotations=annotations
        )
    stage = DecodeStage(decode, keys=keys, storage=str(train))
    name = [_content(train), decode.recipe, sorted(stage.keys.items())]
    learned = cached_json(
        json.dumps(name), lambda: decode.fit(_chunks(train, stage), where=str(train))
    )
    known = copy.copy(decode)
    known.learn(learned)
    return known


def _content(storage: Storage) -> str:
    """The fingerprint; and a look at some rows, since it may know of values only their sizes."""
    rows = np.unique(np.linspace(0, max(len(storage) - 1, 0), _PROBES).astype(np.int64))
    digest = hashlib.blake2b(storage.fingerprint().encode(), digest_size=16)
    for record in storage.read(rows[: len(storage)]):
        digest.update(repr(record).encode("utf-8", "surrogateescape"))
    return digest.hexdigest()


def _chunks(storage: Storage, stage: DecodeStage) -> Iterator[Sequence[Mapping[str, Any]]]:
    """All rows that can be read, some at a time, with their fields renamed."""
    for start in range(0, len(storage), _CHUNK_ROWS):
        rows = np.arange(start, min(start + _CHUNK_ROWS, len(storage)), dtype=np.int64)
        taken = _taken(storage, stage, rows)
        if taken is None:
            taken = [stage.renamed(r) for r in storage.read(rows) if isinstance(r, Record)]
        yield taken


def _taken(
    storage: Storage, stage: DecodeStage, rows: NDArray[np.int64]
) -> list[Mapping[str, Any]] | None:
    """Rows put together from columns, many times quicker; None where that cannot be."""
    if not isinstance(storage, ColumnStorage) or not storage.fields:
        return None
    columns = storage.take(rows, frozenset(storage.fields))
    if columns is None:
        return None
    [key] = storage.index.keys(rows[:1])
    names = stage.renamed(Record(0, key, {name: name for name in storage.fields}))
    values = [_listed(columns[name]) for name in names.values()]
    return [dict(zip(names, row, strict=True)) for row in zip(*values, strict=True)]


def _listed(column: Any) -> list[Any]:
    """The value of each row; where that is an array, it stays one."""
    return list(column) if getattr(column, "ndim", 1) > 1 else column.tolist()
