"""All records in order, whatever is done to them."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from penstock.core.sample import BadRecord, Record
from penstock.datasets.storages.lmdb import LmdbStorage, LmdbWriter
from penstock.datasets.storages.parquet import ParquetWriter
from penstock.datasets.storages.zip import ZipWriter
from penstock.datasets.writing import recoded, write_storage
from tests.contracts.records import ListedRecords
from tests.datasets.storages.lmdb_files import packed_file
from tests.memory_storage import MemoryStorage
from tests.packed import write_lmdb
from tests.photographs import scene


def numbered(record: Record) -> Record:
    if record.index == 5:
        raise ValueError("a five")
    return replace(record, fields={"number": record.index})


def test_order_and_bad_records_are_kept():
    source = MemoryStorage([{"image": b""}] * 99 + ["gone"] + [{"image": b""}] * 50)
    assert [r.index for r in recoded(source, None, range(150))] == list(range(150))
    records = list(recoded(source, numbered, range(150)))
    assert [r.index for r in records] == list(range(150))
    bad = [(r.index, r.cause) for r in records if isinstance(r, BadRecord)]
    assert bad == [(5, "a five"), (99, "gone")]
    assert all(r.fields == {"number": r.index} for r in records if isinstance(r, Record))


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


def test_decoded_and_encoded_images_lie_in_one_file(tmp_path):
    pictures = [scene(20, 30), scene(9, 7)[..., :1], scene(33, 5)]
    fields = [{"image": image, "label": 0} for image in pictures]
    fields.insert(1, {"image": b"a file", "label": 1})
    fields.append({"image": scene(4, 4), "label": 0, "score": 0.5, "points": np.ones((2, 3))})
    fields.append({"label": 1, "score": 0.25})
    write_lmdb(tmp_path / "a", MemoryStorage(fields))
    storage = LmdbStorage(str(tmp_path / "a"))
    for record, expected in zip(storage.read(np.arange(6)), fields, strict=True):
        assert isinstance(record, Record) and record.fields.keys() == expected.keys()
        for name, value in expected.items():
            if isinstance(value, np.ndarray):
                found = record.fields[name]
                assert found.dtype == value.dtype and np.array_equal(found, value)
            else:
                assert record.fields[name] == value
    write_lmdb(tmp_path / "b", storage)
    assert LmdbStorage(str(tmp_path / "b")).fingerprint() == storage.fingerprint()


def test_damage_in_raw_pixels_is_found_at_the_first_read(tmp_path):
    write_lmdb(tmp_path / "a", MemoryStorage([{"image": scene(50, 60, seed)} for seed in range(9)]))
    storage = LmdbStorage(str(tmp_path / "a"))
    place = int(storage.index.column("offset")[4])
    with open(packed_file(tmp_path / "a"), "r+b") as file:
        for at in (0, 4000, 8999):
            file.seek(place + at)
            before = file.read(1)
            for flipped in (bytes([before[0] ^ 1]), before):
                file.seek(place + at)
                file.write(flipped)
                file.flush()
                fresh = LmdbStorage(str(tmp_path / "a")).read(np.arange(9))
                bad = [r.index for r in fresh if isinstance(r, BadRecord)]
                assert bad == ([4] if flipped != before else [])
