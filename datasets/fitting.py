"""Decoders that learn from the data: always from its training part, once for a machine.

Scaling and vocabularies come from the training part, whatever split is opened. The validation data
set opens the training part too (its index is in the cache) and takes the statistics from there. The
cache keeps them by the state of that part's files, its rows and the decoder's recipe. The config
stays plain, no split waits for another, and every rank and worker has the same statistics.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from penstock.core.contracts import (
    Annotations,
    Decoder,
    FittedDecoder,
    Storage,
    StorageCapabilities,
    capabilities_of,
)
from penstock.core.sample import Record
from penstock.datasets.records.index import cached_json
from penstock.datasets.records.indexed_storage import content_mark
from penstock.datasets.records.splits import Split, StorageRecipe, open_split
from penstock.datasets.sample_stages import DecodeStage

_CHUNK_ROWS = 4096


def fitted(
    decode: Decoder,
    storage: StorageRecipe,
    *,
    opened: Storage,
    split: Split,
    val_fraction: float,
    keys: Mapping[str, str | None] | None,
    annotations: Annotations | None = None,
) -> Decoder:
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
    learner = decode
    train = opened
    if split != "train":
        train = open_split(
            storage, split="train", val_fraction=val_fraction, annotations=annotations
        )
    stage = DecodeStage(decode, keys=keys, storage=str(train))

    def learned() -> dict[str, Any]:
        return learner.fit(_chunks(train, stage), where=str(train))

    name = [mark := content_mark(train), learner.recipe, sorted(stage.keys.items())]
    known = copy.copy(learner)
    known.learn(learned() if mark is None else cached_json(json.dumps(name), learned))
    return known


def _chunks(storage: Storage, stage: DecodeStage) -> Iterator[Mapping[str, Any]]:
    """Columns of all rows that can be read, some rows at a time, with the fields renamed."""
    for start in range(0, len(storage), _CHUNK_ROWS):
        rows = np.arange(start, min(start + _CHUNK_ROWS, len(storage)), dtype=np.int64)
        columns = _taken(storage, stage, rows)
        if columns is None:
            read = [stage.renamed(r) for r in storage.read(rows) if isinstance(r, Record)]
            names = dict.fromkeys(name for fields in read for name in fields)
            columns = {name: [fields.get(name) for fields in read] for name in names}
        yield columns


def _taken(storage: Storage, stage: DecodeStage, rows: NDArray[np.int64]) -> dict[str, Any] | None:
    """Columns as the storage has them, many times quicker; None where it has none."""
    columns = capabilities_of(storage, StorageCapabilities).columns
    if columns is None or not columns.fields:
        return None
    taken = columns.take(rows, frozenset(columns.fields))
    if taken is None:
        return None
    [key] = storage.index.keys(rows[:1])
    names = stage.renamed(Record(0, key, {name: name for name in columns.fields}))
    return {name: taken[old] for name, old in names.items()}
