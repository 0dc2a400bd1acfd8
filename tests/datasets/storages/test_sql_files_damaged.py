"""SQLite files that other programs write meanwhile, locked files, and damaged files."""

from __future__ import annotations

import contextlib
import os
import shutil
import sqlite3

import numpy as np
import pytest

from penstock.core.sample import Record
from tests.contracts.damage import flipped, unless_refused
from tests.contracts.storage import check_storage, read_all
from tests.datasets.storages.sqlite_tables import at, everything, put_samples, sample_records
from tests.datasets.storages.tables import images

rng = np.random.default_rng(0)


def tables(folder, encoded):
    return put_samples(folder / "t.db", encoded, page_size=512)


@pytest.mark.parametrize("mode", ["wal", "delete"])
def test_a_program_that_writes_meanwhile(tmp_path, mode):
    encoded = images(30)
    path = tables(tmp_path / "a", encoded)
    put_pragma(path, f"journal_mode={mode}")
    storage = at(path)
    assert [r[1:] for r in everything(storage)] == sample_records(encoded)
    with contextlib.closing(sqlite3.connect(path)) as writer:
        with writer:
            names = [column[1] for column in writer.execute("PRAGMA table_info(samples)")]
            writer.execute("DELETE FROM samples WHERE rowid = 5")
            new = {"name": "new", "label": "cat", "age": 7, "image": b"a"}
            marks = ", ".join("?" * len(names))
            writer.execute(
                f"INSERT INTO samples VALUES ({marks})", [new.get(name) for name in names]
            )
        assert os.path.exists(f"{path}-wal") == (mode == "wal")
        bad, good = storage.read(np.array([4, 5]))
        assert bad.cause == "its row is gone"
        assert good.fields["image"] == encoded[5]
        assert len(at(path)) == 30, "one less, one more"
        assert at(path).read(np.array([29]))[0].fields["age"] == 7
        assert len(at(path).read(np.arange(30))) == 30
    assert at(path).read(np.array([29]))[0].fields["age"] == 7


def put_pragma(path, text):
    with contextlib.closing(sqlite3.connect(path)) as database:
        database.execute(f"PRAGMA {text}")


def test_a_lock_of_another_program_is_waited_for_then_raised(tmp_path, monkeypatch):
    monkeypatch.setattr("penstock.datasets.storages.sql.server._BUSY_S", 0.01)
    monkeypatch.setattr("penstock.datasets.storages.sql.server._PAUSES_S", (0.01,))
    path = tables(tmp_path / "a", images(3))
    storage = at(path)
    assert len(storage) == 3
    with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as writer:
        writer.execute("BEGIN EXCLUSIVE")
        with pytest.raises(OSError, match=r"locked, after several attempts"):
            storage.read(np.array([1]))
        writer.execute("ROLLBACK")
    assert isinstance(storage.read(np.array([1]))[0], Record)


def test_an_unfinished_transaction_is_said(tmp_path):
    path = tables(tmp_path / "a", images(30, largest=9000))
    writer = sqlite3.connect(path, isolation_level=None)
    writer.execute("PRAGMA cache_size=1")
    writer.execute("BEGIN")
    writer.execute("UPDATE samples SET image = zeroblob(50000)")
    shutil.copy(path, tmp_path / "u.db")
    shutil.copy(f"{path}-journal", tmp_path / "u.db-journal")
    writer.execute("ROLLBACK")
    writer.close()
    before = (tmp_path / "u.db").read_bytes()
    with pytest.raises(ValueError, match="left a -journal or -wal file"):
        len(at(str(tmp_path / "u.db")))
    assert (tmp_path / "u.db").read_bytes() == before
    assert (tmp_path / "u.db-journal").exists()


def test_a_damaged_image_spoils_its_record_alone(tmp_path):
    encoded = [rng.bytes(50_000) for _ in range(20)]
    path = tables(tmp_path / "a", encoded)
    storage = at(path)
    assert len(storage) == 20
    with open(path, "r+b") as file:
        page_bytes = int.from_bytes(file.read(18)[16:], "big")
        file.seek(0)
        place = file.read().index(encoded[7][30_000:30_100]) // page_bytes * page_bytes
        file.seek(place)
        file.write(b"\xff\xff\xff\xff")
    records = sample_records(encoded)
    records[7] = (records[7][0], None)
    check_storage(lambda: storage, records, processes=("forked",))


def test_a_file_cut_short_anywhere_is_an_error_or_bad_records(tmp_path):
    encoded = images(60, largest=3000)
    path = tables(tmp_path / "a", encoded)
    content = open(path, "rb").read()
    wanted = dict(sample_records(encoded))
    for size in {0, 1, 15, 16, 20, 99, 100, 511, 512, 513, 1024, 5000, len(content) // 2,
                 len(content) - 20_000}:  # fmt: skip
        with open(path, "wb") as file:
            file.write(content[:size])
        with contextlib.suppress(ValueError):
            found = everything(at(path))
            assert any(fields is None for *_, fields in found)
            assert all(fields in (None, wanted[key]) for _, key, fields in found)


def test_a_flipped_bit_anywhere_never_ends_the_interpreter(tmp_path):
    path = tables(tmp_path / "a", images(60, largest=60))
    places = [*rng.integers(0, 200, 30), *rng.integers(0, os.path.getsize(path), 70)]
    refused = 0
    for _ in flipped(path, places, rng):
        records = unless_refused(lambda: read_all(at(path)))
        refused += records is None
    assert refused > 2
