"""Records that are changed while they are written."""

from __future__ import annotations

from dataclasses import replace

import pytest

from penstock.core.sample import BadRecord, Record
from penstock.datasets.storages.lmdb import LmdbWriter
from penstock.datasets.storages.parquet import ParquetWriter
from penstock.datasets.storages.zip import ZipWriter
from penstock.datasets.writing import make_plan, recoded, write_storage
from tests.contracts.records import ListedRecords
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


def test_parts_of_a_source_without_sizes_follow_those_of_some_records():
    writer = LmdbWriter()
    writer.part_bytes = 10_000
    plan = make_plan(writer, ListedRecords({str(n): {"image": bytes(1000)} for n in range(50)}))
    assert [len(part) for part in plan.parts] == [9, 9, 9, 9, 9, 5]


@pytest.mark.parametrize(
    ("writer", "key", "label", "said"),
    [
        (LmdbWriter, "a", 0.7, "'a': label is 0.7, expected a class id"),
        (ParquetWriter, "a\udcff", 0, r"the key b'a\\xff' is not UTF-8"),
        (ZipWriter, "c/a\udcff.jpg", 0, r"the key b'c/a\\xff.jpg' is not UTF-8"),
    ],
)
def test_records_that_would_change_are_refused(tmp_path, writer, key, label, said):
    source = ListedRecords({key: {"image": b"", "label": label}}, ["c"])
    with pytest.raises(ValueError, match=f"pack: {said}"):
        write_storage(writer(), tmp_path / "a", source)
