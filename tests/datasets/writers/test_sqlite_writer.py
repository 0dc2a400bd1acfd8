"""SQLite as it is written in parts, and as other programs see it."""

from __future__ import annotations

import contextlib
import os
import sqlite3

import numpy as np
import pytest

from penstock.core.arrays import read_npy
from penstock.datasets.storages.sqlite import SqliteStorage, SqliteWriter
from penstock.datasets.writing import write_storage
from tests.datasets.storages.sqlite_tables import at
from tests.datasets.writers.writer_contract import (
    ListedRecords,
    assert_equal_records,
    check_writer,
    contents,
)


def small() -> SqliteWriter:
    writer = SqliteWriter()
    writer.part_records = 5
    return writer


def test_contract(tmp_path):
    check_writer(small, tmp_path)


def records(count):
    return {
        f"k{i}": {
            "image": b"jpeg %d" % i,
            "label": i % 2,
            "boxes": np.full((i % 3, 4), i, np.float32),
            "path": f"ü {i}",
            "tags": ["a", {"b": i}],
            "width": i,
            "score": i / 2,
        }
        for i in range(count)
    }


def test_others_see_plain_columns(tmp_path):
    write_storage(small(), tmp_path / "s", ListedRecords(records(25), ("cat", "dog")))
    assert os.listdir(tmp_path / "s") == ["samples.sqlite"]
    with contextlib.closing(sqlite3.connect(tmp_path / "s/samples.sqlite")) as database:
        found = database.execute("SELECT rowid, * FROM samples WHERE width = 8").fetchall()
        names = [column[1] for column in database.execute("PRAGMA table_info(samples)")]
    assert names[:3] == ["key", "label", "penstock_rest"]
    assert names[-2:] == ["image", "boxes"]
    row = dict(zip(["rowid", *names], found[0], strict=True))
    assert read_npy(row.pop("boxes")).tolist() == [[8.0] * 4] * 2
    assert row == {"rowid": 9, "key": "k8", "label": 0, "penstock_rest": None, "score": 4.0,
                   "width": 8, "tags": '["a", {"b": 8}]', "path": "ü 8",
                   "image": b"jpeg 8"}  # fmt: skip
    few = SqliteStorage(str(tmp_path / "s"), columns=["path"])
    assert few.read(np.array([3]))[0].fields == {"image": b"jpeg 3", "label": 1, "path": "ü 3"}
    assert few.index.column("size_bytes").sum() == sum(len(b"jpeg %d" % i) for i in range(25))
    plain = at(tmp_path / "s/samples.sqlite", table="samples", columns=["tags"])
    assert plain.read(np.array([1]))[0].fields["tags"] == '["a", {"b": 1}]'


def test_what_the_samples_did_not_show_comes_back_too(tmp_path):
    found = records(100)
    found["k37"] |= {"boxes": np.zeros((1, 5), np.float16), "path": None, "new": b"x",
                     "width": 1 << 70, "a/b": 1.5, "score": float("nan"), "WIDTH": 3}  # fmt: skip
    found["k38"] = {"label": 0}
    found["k39"]["image"] = np.zeros((2, 2, 3), np.uint8)
    source = ListedRecords(found, ("cat", "dog"))
    write_storage(SqliteWriter(), tmp_path / "s", source)
    assert_equal_records(SqliteStorage(str(tmp_path / "s")), source)


@pytest.mark.parametrize("statement", ["INSERT INTO samples", "COMMIT"])
def test_a_join_that_was_killed_goes_on_with_the_same_bytes(tmp_path, statement):
    source = ListedRecords(records(23), ("cat", "dog"))
    write_storage(small(), tmp_path / "whole", source)

    class Killed(SqliteWriter):
        part_records = 5

        def join_part(self, folder, plan, summary):
            if (pid := os.fork()) == 0:
                _die_at(statement)
                super().join_part(folder, plan, summary)
                os._exit(0)
            assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 9
            super().join_part(folder, plan, summary)

    write_storage(Killed(), tmp_path / "killed", source)
    assert contents(tmp_path / "killed") == contents(tmp_path / "whole")


def _die_at(statement):
    """End this process once such a statement has run (an INSERT) or as it begins (a COMMIT)."""
    connect = sqlite3.connect

    class Dying(sqlite3.Connection):
        def execute(self, sql, *arguments):
            if sql.startswith(statement):
                if statement != "COMMIT":
                    super().execute(sql, *arguments)
                os._exit(9)
            return super().execute(sql, *arguments)

    sqlite3.connect = lambda *a, **k: connect(*a, factory=Dying, **k)
