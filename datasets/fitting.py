"""Fit decoders on the training split, once for each state of its files on a machine."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np

from penstock.core.contracts import Decoder, FittedDecoder, Storage
from penstock.core.machine_cache import computed_once, signature_of
from penstock.core.sample import Record
from penstock.datasets.records.indexed_storage import content_mark
from penstock.datasets.sample_stages import DecodeStage

_CHUNK_ROWS = 4096


def fitted(
    decode: Decoder, train: Callable[[], Storage], *, keys: Mapping[str, str | None] | None
) -> Decoder:
    """Return the decoder with statistics of the training split; unchanged if it needs none."""
    if not isinstance(decode, FittedDecoder) or decode.statistics is not None:
        return decode
    storage = train()
    stage = DecodeStage(decode, keys=keys, storage=str(storage))

    def learned() -> dict[str, Any]:
        return decode.fit(_chunks(storage, stage), where=str(storage))

    known = copy.copy(decode)
    if (mark := content_mark(storage)) is None:
        known.learn(learned())
        return known
    _, (statistics,) = computed_once(
        f"json-{signature_of(name=[mark, decode.recipe, sorted(stage.keys.items())])}",
        ".json",
        make=lambda path: path.write_text(json.dumps([learned()])),
        load=lambda path: json.loads(path.read_bytes()),
        what="statistics of the training part",
    )
    known.learn(statistics)
    return known


def _chunks(storage: Storage, stage: DecodeStage) -> Iterator[Mapping[str, Any]]:
    fields = storage.column_fields
    for start in range(0, len(storage), _CHUNK_ROWS):
        rows = np.arange(start, min(start + _CHUNK_ROWS, len(storage)), dtype=np.int64)
        # Columns are much faster than records.
        if fields and (taken := storage.take(rows, frozenset(fields))) is not None:
            [key] = storage.index.keys(rows[:1])
            names = stage.renamed(Record(0, key, {name: name for name in fields}))
            yield {name: taken[old] for name, old in names.items()}
            continue
        read = [stage.renamed(r) for r in storage.read(rows) if isinstance(r, Record)]
        names = dict.fromkeys(name for fields_of in read for name in fields_of)
        yield {name: [fields_of.get(name) for fields_of in read] for name in names}
