"""All records in order, whatever is done to them."""

from __future__ import annotations

import pickle
import zlib
from dataclasses import replace

import numpy as np
import pytest

from penstock.core.sample import BadRecord, Record
from penstock.datasets.storages.lmdb import LmdbStorage
from penstock.datasets.writing import recoded
from tests.memory_storage import MemoryStorage
from tests.packed import write_lmdb
from tests.photographs import scene


def numbered(record: Record) -> Record:
    if record.index == 5:
        raise ValueError("a five")
    return replace(record, fields={"number": record.index})


def test_order_and_bad_records_are_kept():
    source = MemoryStorage([{"image": b""}] * 99 + ["gone"] + [{"image": b""}] * 50)
    assert [r.index for r in recoded(source)] == list(range(150))
    records = list(recoded(source, numbered))
    assert [r.index for r in records] == list(range(150))
    bad = [(r.index, r.cause) for r in records if isinstance(r, BadRecord)]
    assert bad == [(5, "a five"), (99, "gone")]
    assert all(r.fields == {"number": r.index} for r in records if isinstance(r, Record))


def test_a_failure_that_is_no_damage_comes_out():
    def fail(record: Record) -> Record:
        raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        list(recoded(MemoryStorage([{}] * 9), fail))


def test_decoded_and_encoded_images_lie_in_one_file(tmp_path):
    pictures = [scene(20, 30), scene(9, 7)[..., :1], scene(33, 5)]
    fields = [{"image": image, "label": 0} for image in pictures]
    fields.insert(1, {"image": b"a file", "label": 1})
    fields.append({"image": scene(4, 4), "label": 0, "score": 0.5, "points": np.ones((2, 3))})
    fields.append({"label": 1, "score": 0.25})
    write_lmdb(tmp_path / "a", MemoryStorage(fields))
    storage = LmdbStorage(str(tmp_path / "a"))
    assert {"raw_height", "raw_width", "raw_channels"} <= set(storage.index.columns)
    for _ in range(2):  # with the checksum, and without
        for record, expected in zip(storage.read(np.arange(6)), fields, strict=True):
            assert isinstance(record, Record) and record.fields.keys() == expected.keys()
            for name, value in expected.items():
                if isinstance(value, np.ndarray):
                    found = record.fields[name]
                    assert found.dtype == value.dtype and np.array_equal(found, value)
                    assert found.flags.writeable == (name != "image")
                else:
                    assert record.fields[name] == value
    write_lmdb(tmp_path / "b", storage)
    assert LmdbStorage(str(tmp_path / "b")).fingerprint() == storage.fingerprint()


def test_a_recoded_image_loses_what_the_index_said_of_its_size(tmp_path):
    class AsItIs:
        counts: dict[str, int] = {}  # noqa: RUF012

        def __call__(self, record):
            return record

    write_lmdb(tmp_path / "a", MemoryStorage([{"image": scene(20, 30)}]), recode=AsItIs())
    columns = LmdbStorage(str(tmp_path / "a")).index.columns
    assert "height" not in columns and "raw_height" in columns


def test_damage_in_raw_pixels_is_found_at_the_first_read(tmp_path):
    write_lmdb(tmp_path / "a", MemoryStorage([{"image": scene(50, 60, seed)} for seed in range(9)]))
    storage = LmdbStorage(str(tmp_path / "a"))
    place = int(storage.index.column("offset")[4])
    with open(tmp_path / "a/data.mdb", "r+b") as file:
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
                trusting = LmdbStorage(str(tmp_path / "a"), checksums=False).read(np.arange(9))
                assert not any(isinstance(r, BadRecord) for r in trusting)


def test_checksums_are_compared_once_in_a_process(tmp_path, monkeypatch):
    images = [{"image": scene(50, 60, seed)} for seed in range(20)]
    write_lmdb(tmp_path / "a", MemoryStorage(images))
    storage = LmdbStorage(str(tmp_path / "a"))
    len(storage)  # opens the index, which has checksums of its own
    compared = []
    crc32 = zlib.crc32
    monkeypatch.setattr(zlib, "crc32", lambda value: compared.append(1) or crc32(value))
    for indices, count in ([3, 5, 3], 2), (range(20), 20), (range(20), 20):
        storage.read(np.array(indices))
        assert len(compared) == count
    elsewhere = pickle.loads(pickle.dumps(storage))
    for _ in range(2):
        elsewhere.read(np.array([3]))
        assert len(compared) == 21, "another process compares for itself, once"
    another = LmdbStorage(str(tmp_path / "a"))
    len(another)
    compared.clear()
    another.read(np.array([3]))
    assert len(compared) == 1


def test_a_file_cut_short_after_it_was_opened_gives_bad_records(tmp_path):
    write_lmdb(tmp_path / "a", MemoryStorage([{"image": scene(50, 60, seed)} for seed in range(9)]))
    storage = LmdbStorage(str(tmp_path / "a"))
    assert all(isinstance(r, Record) for r in storage.read(np.arange(9)))
    with open(tmp_path / "a/data.mdb", "r+b") as file:
        file.truncate(int(storage.index.column("offset")[4]) + 100)
    found = storage.read(np.arange(9))
    assert [isinstance(r, BadRecord) for r in found] == [False] * 4 + [True] * 5
    assert "8,900 bytes too early" in found[4].cause
