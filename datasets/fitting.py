"""Fit decoders on the training split, once per machine.

Scaling and vocabularies come from the training split, whatever split is opened. The validation
data set also opens the training split, whose index is cached, and takes the statistics from it.
The cache key covers the state of that split's files, its rows and the decoder's recipe. So the
config stays plain, splits need no order, and all ranks and workers use the same statistics.
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
    """Return the decoder with statistics of the training split; unchanged if it needs none."""
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
    """Yield columns of all readable rows in chunks, with renamed fields."""
    for start in range(0, len(storage), _CHUNK_ROWS):
        rows = np.arange(start, min(start + _CHUNK_ROWS, len(storage)), dtype=np.int64)
        columns = _taken(storage, stage, rows)
        if columns is None:
            read = [stage.renamed(r) for r in storage.read(rows) if isinstance(r, Record)]
            names = dict.fromkeys(name for fields in read for name in fields)
            columns = {name: [fields.get(name) for fields in read] for name in names}
        yield columns


def _taken(storage: Storage, stage: DecodeStage, rows: NDArray[np.int64]) -> dict[str, Any] | None:
    """Take columns directly from the storage, which is much faster; None if it has none."""
    taken = storage.take(rows, frozenset(storage.column_fields)) if storage.column_fields else None
    if taken is None:
        return None
    [key] = storage.index.keys(rows[:1])
    names = stage.renamed(Record(0, key, {name: name for name in storage.column_fields}))
    return {name: taken[old] for name, old in names.items()}
