"""Records that are changed while they are written."""

from __future__ import annotations

from dataclasses import replace

from penstock.core.sample import BadRecord, Record
from penstock.datasets.writing import recoded
from tests.memory_storage import MemoryStorage


def numbered(record: Record) -> Record:
    if record.index == 5:
        raise ValueError("a five")
    return replace(record, fields={"number": record.index})


def test_changed_records_keep_their_order_among_bad_ones():
    source = MemoryStorage([{"image": b""}] * 99 + ["gone"] + [{"image": b""}] * 50)
    assert [r.index for r in recoded(source, None, range(150))] == list(range(150))
    records = list(recoded(source, numbered, range(150)))
    assert [r.index for r in records] == list(range(150))
    bad = [(r.index, r.cause) for r in records if isinstance(r, BadRecord)]
    assert bad == [(5, "a five"), (99, "gone")]
    assert all(r.fields == {"number": r.index} for r in records if isinstance(r, Record))
