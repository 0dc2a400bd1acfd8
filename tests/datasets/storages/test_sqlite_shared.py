"""SQLite databases that other programs write to, and that forked processes read."""

import contextlib
import os
import shutil
import sqlite3

import numpy as np
import pytest

from penstock.core.sample import Record
from penstock.datasets.storages.sqlite import SqliteStorage
from penstock.datasets.storages.sqlite import database as sqlite_files
from tests.contracts.storage import check_forks_while_threads_read, read_all, summary
from tests.datasets.storages.sqlite_tables import everything, put_samples, sample_records
from tests.datasets.storages.tables import images


@pytest.mark.parametrize("mode", ["wal", "delete"])
def test_a_program_that_writes_meanwhile(tmp_path, mode):
    encoded = images(30)
    path = put_samples(tmp_path / "t.db", encoded, journal_mode=mode)
    storage = SqliteStorage(path)
    assert everything(storage) == [(i, *record) for i, record in enumerate(sample_records(encoded))]
    with contextlib.closing(sqlite3.connect(path)) as writer:
        with writer:
            writer.execute("DELETE FROM samples WHERE rowid = 5")
            writer.execute("INSERT INTO samples VALUES ('new', 'cat', 1, x'61')")
        assert os.path.exists(f"{path}-wal") == (mode == "wal")
        bad, good = storage.read(np.array([4, 5]))
        assert bad.cause == "its row is gone"
        assert good.fields["image"] == encoded[5]
        assert len(SqliteStorage(path)) == 30, "one less, one more"
        assert SqliteStorage(path).read(np.array([29]))[0].fields["name"] == "new"
        assert len(SqliteStorage(path).read(np.arange(30))) == 30
    assert SqliteStorage(path).read(np.array([29]))[0].fields["name"] == "new"


def test_a_lock_of_another_program_is_waited_for_then_raised(tmp_path, monkeypatch):
    monkeypatch.setattr(sqlite_files, "_BUSY_S", 0.01)
    monkeypatch.setattr("penstock.datasets.files.access._PAUSES_S", (0.01,))
    path = put_samples(tmp_path / "t.db", images(3))
    storage = SqliteStorage(path)
    assert len(storage) == 3
    with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as writer:
        writer.execute("BEGIN EXCLUSIVE")
        with pytest.raises(OSError, match=r"another program holds it .*locked.*after 2 attempts"):
            storage.read(np.array([1]))
        writer.execute("ROLLBACK")
    assert isinstance(storage.read(np.array([1]))[0], Record)


def test_an_unfinished_transaction_is_said(tmp_path):
    path = put_samples(tmp_path / "t.db", images(30, largest=9000))
    writer = sqlite3.connect(path, isolation_level=None)
    writer.execute("PRAGMA cache_size=1")
    writer.execute("BEGIN")
    writer.execute("UPDATE samples SET image = zeroblob(5000)")
    shutil.copy(path, tmp_path / "u.db")
    shutil.copy(f"{path}-journal", tmp_path / "u.db-journal")
    writer.execute("ROLLBACK")
    writer.close()
    before = (tmp_path / "u.db").read_bytes()
    with pytest.raises(ValueError, match="has left a -journal or -wal file behind"):
        len(SqliteStorage(str(tmp_path / "u.db")))
    assert (tmp_path / "u.db").read_bytes() == before
    assert (tmp_path / "u.db-journal").exists()


def test_a_fork_while_threads_read_waits_for_nothing(tmp_path):
    storage = SqliteStorage(put_samples(tmp_path / "t.db", images(200, largest=30_000)))
    check_forks_while_threads_read(storage, summary(read_all(storage)))
