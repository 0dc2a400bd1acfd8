"""SQLite files that ``pack`` wrote: written to meanwhile, locked, forked, damaged, or another's."""

from __future__ import annotations

import contextlib
import os
import shutil
import sqlite3

import numpy as np
import pytest

from penstock.core.sample import Record
from penstock.datasets.files import sqlite_files
from penstock.datasets.storages.sqlite import SqliteStorage
from penstock.pipeline.build import open_storage
from penstock.pipeline.config.compose import compose
from tests.contracts.damage import flipped, unless_refused
from tests.contracts.storage import (
    check_forks_while_threads_read,
    check_storage,
    read_all,
    summary,
)
from tests.datasets.storages.sqlite_tables import (
    at,
    everything,
    packed,
    packed_records,
    put,
    put_samples,
    sample_records,
)
from tests.datasets.storages.tables import images

rng = np.random.default_rng(0)


def tables(folder, encoded):
    return put_samples(folder / "t.db", encoded, page_size=512)


WAYS = {
    "packed": (packed, SqliteStorage, packed_records),
    "tables": (tables, at, sample_records),
}


@pytest.fixture(params=WAYS)
def way(request):
    """Files as ``pack`` writes them, and tables of other programs."""
    return WAYS[request.param]


def test_contract_of_packed_files(tmp_path):
    encoded = images(40)
    packed(tmp_path / "a", encoded)
    shutil.copytree(tmp_path / "a", tmp_path / "b")
    check_storage(
        lambda: SqliteStorage(str(tmp_path / "a")),
        packed_records(encoded),
        make_copy=lambda: SqliteStorage(str(tmp_path / "b/samples.sqlite")),
    )
    assert len([p for p in tmp_path.rglob("*") if p.is_file()]) == 2, "nothing is written there"


@pytest.mark.parametrize("mode", ["wal", "delete"])
def test_a_program_that_writes_meanwhile(tmp_path, way, mode):
    make, open_file, make_records = way
    encoded = images(30)
    path = make(tmp_path / "a", encoded)
    put_pragma(path, f"journal_mode={mode}")
    storage = open_file(path)
    assert [r[1:] for r in everything(storage)] == make_records(encoded)
    with contextlib.closing(sqlite3.connect(path)) as writer:
        with writer:
            names = [column[1] for column in writer.execute("PRAGMA table_info(samples)")]
            writer.execute("DELETE FROM samples WHERE rowid = 5")
            new = {"key": "new", "name": "new", "label": 0 if "key" in names else "cat",
                   "age": 7, "image": b"a"}  # fmt: skip
            marks = ", ".join("?" * len(names))
            writer.execute(
                f"INSERT INTO samples VALUES ({marks})", [new.get(name) for name in names]
            )
        assert os.path.exists(f"{path}-wal") == (mode == "wal")
        bad, good = storage.read(np.array([4, 5]))
        assert bad.cause == "its row is gone"
        assert good.fields["image"] == encoded[5]
        assert len(open_file(path)) == 30, "one less, one more"
        assert open_file(path).read(np.array([29]))[0].fields["age"] == 7
        assert len(open_file(path).read(np.arange(30))) == 30
    assert open_file(path).read(np.array([29]))[0].fields["age"] == 7


def put_pragma(path, text):
    with contextlib.closing(sqlite3.connect(path)) as database:
        database.execute(f"PRAGMA {text}")


def test_a_lock_of_another_program_is_waited_for_then_raised(tmp_path, way, monkeypatch):
    make, open_file, _ = way
    monkeypatch.setattr(sqlite_files, "_BUSY_S", 0.01)
    monkeypatch.setattr("penstock.datasets.files.access._PAUSES_S", (0.01,))
    monkeypatch.setattr("penstock.datasets.storages.sql.server._PAUSES_S", (0.01,))
    path = make(tmp_path / "a", images(3))
    storage = open_file(path)
    assert len(storage) == 3
    with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as writer:
        writer.execute("BEGIN EXCLUSIVE")
        with pytest.raises(OSError, match=r"another program holds it .*locked.*after .* attempts"):
            storage.read(np.array([1]))
        writer.execute("ROLLBACK")
    assert isinstance(storage.read(np.array([1]))[0], Record)


def test_an_unfinished_transaction_is_said(tmp_path, way):
    make, open_file, _ = way
    path = make(tmp_path / "a", images(30, largest=9000))
    writer = sqlite3.connect(path, isolation_level=None)
    writer.execute("PRAGMA cache_size=1")
    writer.execute("BEGIN")
    writer.execute("UPDATE samples SET image = zeroblob(50000)")
    shutil.copy(path, tmp_path / "u.db")
    shutil.copy(f"{path}-journal", tmp_path / "u.db-journal")
    writer.execute("ROLLBACK")
    writer.close()
    before = (tmp_path / "u.db").read_bytes()
    with pytest.raises(ValueError, match="has left a -journal or -wal file behind"):
        len(open_file(str(tmp_path / "u.db")))
    assert (tmp_path / "u.db").read_bytes() == before
    assert (tmp_path / "u.db-journal").exists()


def test_a_fork_while_threads_read_waits_for_nothing(tmp_path, way):
    make, open_file, _ = way
    storage = open_file(make(tmp_path / "a", images(200, largest=30_000)))
    check_forks_while_threads_read(storage, summary(read_all(storage)))


def test_a_damaged_image_spoils_its_record_alone(tmp_path, way):
    make, open_file, make_records = way
    encoded = [rng.bytes(50_000) for _ in range(20)]
    path = make(tmp_path / "a", encoded)
    storage = open_file(path)
    assert len(storage) == 20
    with open(path, "r+b") as file:
        page_bytes = int.from_bytes(file.read(18)[16:], "big")
        file.seek(0)
        at = file.read().index(encoded[7][30_000:30_100]) // page_bytes * page_bytes
        file.seek(at)
        file.write(b"\xff\xff\xff\xff")
    records = make_records(encoded)
    records[7] = (records[7][0], None)
    check_storage(lambda: storage, records, processes=("forked",))


def test_a_file_cut_short_anywhere_is_an_error_or_bad_records(tmp_path, way):
    make, open_file, make_records = way
    encoded = images(60, largest=3000)
    path = make(tmp_path / "a", encoded)
    content = open(path, "rb").read()
    wanted = dict(make_records(encoded))
    for size in {0, 1, 15, 16, 20, 99, 100, 511, 512, 513, 1024, 5000, len(content) // 2,
                 len(content) - 20_000}:  # fmt: skip
        with open(path, "wb") as file:
            file.write(content[:size])
        with contextlib.suppress(ValueError):
            found = everything(open_file(path))
            assert any(fields is None for *_, fields in found)
            assert all(fields in (None, wanted[key]) for _, key, fields in found)


def test_a_flipped_bit_anywhere_never_ends_the_interpreter(tmp_path, way):
    make, open_file, _ = way
    path = make(tmp_path / "a", images(60, largest=60))
    places = [*rng.integers(0, 200, 30), *rng.integers(0, os.path.getsize(path), 70)]
    refused = 0
    for _ in flipped(path, places, rng):
        records = unless_refused(lambda: read_all(open_file(path)))
        refused += records is None
    assert refused > 2


def test_tables_of_other_programs_are_answered_with_what_to_type(tmp_path):
    path = put_samples(tmp_path / "t.db", images(6))
    put(tmp_path / "t.db", "CREATE TABLE tags (name TEXT)")
    with pytest.raises(
        ValueError, match=r"tables of another program \('samples', 'tags'\)"
    ) as said:
        len(SqliteStorage(path))
    assert str(said.value).startswith(f"sqlite {path}: ") and "\n" not in str(said.value)
    typed = str(said.value).partition("; type ")[2].split()
    assert typed[0] == "dataset=sql"
    assert len(open_storage(compose([*typed, "dataset.val_fraction=0"]), "train")) == 6
    put(tmp_path / "empty.db", "CREATE TABLE a (x)", "DROP TABLE a")
    with pytest.raises(ValueError, match=r"tables of another program \(none\)"):
        len(SqliteStorage(str(tmp_path / "empty.db")))


def test_wrong_paths(tmp_path):
    with pytest.raises(ValueError, match="expected an SQLite file, got nothing there; set data"):
        len(SqliteStorage(str(tmp_path / "no.db")))
    with pytest.raises(ValueError, match="expected an SQLite file, got a folder"):
        len(SqliteStorage(str(tmp_path)))
    for content in (b"", b"SQLite format 3", b"x" * 5000):
        (tmp_path / "x.db").write_bytes(content)
        with pytest.raises(ValueError, match="damaged or no SQLite file: it is no SQLite file"):
            len(SqliteStorage(str(tmp_path / "x.db")))


def test_a_second_start_reads_nothing_until_the_file_changes(tmp_path, monkeypatch):
    path = packed(tmp_path / "a", images(5))
    first = SqliteStorage(path).fingerprint()
    with monkeypatch.context() as patch:
        patch.setattr("penstock.datasets.storages.sqlite.open_to_read", None)
        assert SqliteStorage(path).fingerprint() == first
    shutil.rmtree(tmp_path / "a")
    packed(tmp_path / "a", images(6, seed=1))
    assert SqliteStorage(path).fingerprint() != first
