"""SQLite files of other programs: values of every type, locks, and refused queries."""

from __future__ import annotations

import contextlib
import math
import os
import sqlite3

import numpy as np
import pytest

from penstock.core.sample import Record
from penstock.core.user_errors import ExplainedError
from tests.contracts.storage import check_storage
from tests.datasets.storages.checks import check_with_copy, refusal
from tests.datasets.storages.sqlite_tables import (
    CLASSES,
    TABLE,
    at,
    everything,
    put,
    put_samples,
    sample_records,
)
from tests.datasets.storages.tables import images

rng = np.random.default_rng(0)


@pytest.mark.parametrize("options", [{}, {"page_size": 512, "encoding": "'UTF-16be'"},
                                     {"journal_mode": "wal", "auto_vacuum": "full"}])  # fmt: skip
def test_contract(tmp_path, options):
    encoded = images(64, largest=20_000)
    path = put_samples(tmp_path / "t #%.db", encoded, **options)
    processes = ("forked",) if options else ("forked", "new")
    check_with_copy(at, path, sample_records(encoded), processes=processes)
    assert at(path).index.class_names == tuple(CLASSES)


SOURCES = {
    "without_rowid": (TABLE.replace("TEXT,", "TEXT PRIMARY KEY,", 1) + " WITHOUT ROWID", {}, {}),
    "view": (TABLE, {"table": "v"}, {"key_column": "name"}),
    "query": (TABLE, {"query": "select * from samples where age >= 0 -- all"},
              {"key_column": "name"}),
    "collated": (TABLE.replace("TEXT,", "TEXT COLLATE NOCASE,", 1), {}, {"key_column": "name"}),
}  # fmt: skip


@pytest.mark.parametrize("case", SOURCES)
def test_contract_by_keys(tmp_path, case):
    encoded = images(40)
    create, options, key = SOURCES[case]
    path = put_samples(tmp_path / "t.db", encoded, create)
    if case == "view":
        put(tmp_path / "t.db", "CREATE VIEW v AS SELECT * FROM samples")
    records = sample_records(encoded, by_name=True)
    records.sort()  # rows are listed in the order of their keys
    check_storage(lambda: at(path, **options, **key), records, processes=("forked",))


KEYS = {"texts": (["a", "A", "", "a'", "é"], ["", "A", "a", "a'", "é"]),
        "numbers": ([7, 0, -(2**63)], [str(-(2**63)), "0", "7"]),
        "bytes": ([b"\xff", b"a"], ["a", "\\xff"])}  # fmt: skip


@pytest.mark.parametrize("case", KEYS)
def test_keys_of_all_types(tmp_path, case):
    keys, names = KEYS[case]
    path = put(tmp_path / "t.db", "CREATE TABLE samples (k, v)", "CREATE INDEX i ON samples (k)",
               rows=[(key, i) for i, key in enumerate(keys)])  # fmt: skip
    places = sorted(range(len(keys)), key=lambda i: keys[i])
    wanted = [(name, {"v": i}) for name, i in zip(names, places, strict=True)]
    check_storage(lambda: at(path, key_column="k"), wanted, processes=())


def test_types_and_missing_values(tmp_path):
    rows = [(1, 2, 1.5, 3, "t", b"b", None, 1), (2, None, None, 0.5, None, None, None, "x")]
    create = "CREATE TABLE samples (i, n, x, m, s, b, e, mixed)"
    storage = at(put(tmp_path / "t.db", create, rows=rows))
    first, second = (record.fields for record in storage.read(np.arange(2)))
    assert first == {"i": 1, "n": 2.0, "x": 1.5, "m": 3.0, "s": "t", "b": b"b", "e": None,
                     "mixed": "1"}  # fmt: skip
    assert isinstance(first["i"], int) and isinstance(first["n"], float)
    assert math.isnan(second.pop("n")) and math.isnan(second.pop("x"))
    assert second == {"i": 2, "m": 0.5, "s": None, "b": None, "e": None, "mixed": "x"}


def test_an_integer_that_a_float_would_round_is_bad(tmp_path):
    rows = [(1, None), (2, (1 << 53) + 1), (3, 1 << 60)]
    path = put(tmp_path / "t.db", "CREATE TABLE samples (key INTEGER PRIMARY KEY, n)", rows=rows)
    missing, rounded, exact = at(path).read(np.arange(3))
    assert math.isnan(missing.fields["n"]) and exact.fields["n"] == 2.0**60
    assert str((1 << 53) + 1) in rounded.cause


def test_images_are_not_read_for_the_index(tmp_path):
    path = put_samples(tmp_path / "t.db", [b"x" * 100_000] * 50)
    content = bytearray(open(path, "rb").read())
    pages = [i for i in range(0, len(content), 4096) if content[i + 5 : i + 4001] == b"x" * 3996]
    assert len(pages) > 1000
    for place in pages:
        content[place : place + 4] = b"\xff\xff\xff\xff"  # the next page of the image: nowhere
    with open(path, "wb") as file:
        file.write(content)
    causes = [record.cause for record in at(path).read(np.arange(3))]
    assert causes == ["database disk image is malformed"] * 3


def test_text_of_another_encoding_is_a_bad_record(tmp_path):
    path = put(tmp_path / "t.db", "CREATE TABLE samples (s)", rows=[("ä",), ("b",)])
    put(tmp_path / "t.db", "INSERT INTO samples VALUES (CAST(x'c328' AS TEXT))")
    good, _, bad = at(path).read(np.arange(3))
    assert good.fields == {"s": "ä"}
    assert "UTF-8" in bad.cause


@pytest.mark.parametrize("mode", ["wal", "delete"])
def test_rows_that_another_program_deletes_and_adds(tmp_path, mode):
    encoded = images(30)
    path = put_samples(tmp_path / "a/t.db", encoded, page_size=512)
    put(tmp_path / "a/t.db", journal_mode=mode)
    storage = at(path)
    assert [r[1:] for r in everything(storage)] == sample_records(encoded)
    with contextlib.closing(sqlite3.connect(path)) as writer:
        with writer:
            writer.execute("DELETE FROM samples WHERE rowid = 5")
            writer.execute("INSERT INTO samples VALUES ('new', 'cat', 7, x'61')")
        assert os.path.exists(f"{path}-wal") == (mode == "wal")
        bad, good = storage.read(np.array([4, 5]))
        assert bad.cause == "its row is gone"
        assert good.fields["image"] == encoded[5]
        assert len(at(path)) == 30, "one less, one more"
        assert at(path).read(np.array([29]))[0].fields["age"] == 7


def test_a_locked_file_is_retried_then_raised(tmp_path, monkeypatch):
    monkeypatch.setattr("penstock.datasets.storages.sql.server._PAUSES_S", (0.01,))
    path = put_samples(tmp_path / "a/t.db", images(3), page_size=512)
    storage = at(path)
    assert len(storage) == 3
    with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as writer:
        writer.execute("BEGIN EXCLUSIVE")
        with pytest.raises(OSError, match=r"locked, after several attempts"):
            storage.read(np.array([1]))
        writer.execute("ROLLBACK")
    assert isinstance(storage.read(np.array([1]))[0], Record)


def test_a_table_dropped_meanwhile_stops_the_run_at_once(tmp_path):
    storage = at(put_samples(tmp_path / "t.db", images(3)))
    assert len(storage) == 3
    put(tmp_path / "t.db", "DROP TABLE samples")
    with pytest.raises(ExplainedError, match="no such table"):
        storage.read(np.array([1]))


def test_a_file_cut_short_anywhere_is_an_error_or_bad_records(tmp_path):
    encoded = images(60, largest=3000)
    path = put_samples(tmp_path / "a/t.db", encoded, page_size=512)
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


@pytest.mark.parametrize(
    ("query", "message"),
    [
        ("delete from samples returning *", "syntax error|no such column"),
        ("select 1 as k) union select * from (select 2", "same number of result|too many values"),
    ],
)
def test_queries_that_would_do_more_than_read(tmp_path, query, message):
    path = put(tmp_path / "t.db", "CREATE TABLE samples (k)", rows=[(1,)])
    before = open(path, "rb").read()
    refusal(at(path, query=query, key_column="k"), f"^sql sqlite:///{path}.*({message})")
    assert open(path, "rb").read() == before
    assert os.listdir(tmp_path) == ["t.db"]


REFUSED = {
    "none": (["CREATE TABLE samples (a)"], {}, "the table is empty"),
    "two_tables": (["CREATE TABLE a (x)", "CREATE TABLE b (x)"], {},
                   "set dataset.storage.table to one of: 'a', 'b'"),
    "no_table": (["CREATE TABLE a (x)"], {"table": "b"}, "no table 'b'; .* of: 'a'"),
    "view": (["CREATE VIEW v AS SELECT 1 AS x"], {}, "set dataset.storage.key_column to one of: x"),
    "twice": (["CREATE TABLE a (x)", "INSERT INTO a VALUES (1), (2), (1)"], {"key_column": "x"},
              "key '1' stands twice, .* take a column whose values differ"),
    "float_key": (["CREATE TABLE a (x)", "INSERT INTO a VALUES (1.5)"], {"key_column": "x"},
                  "the key is 1.5"),
    "key_types": (["CREATE TABLE a (x)", "INSERT INTO a VALUES (1), ('b')"], {"key_column": "x"},
                  "the keys are int and str, expected one type"),
    "broken_view": (["CREATE TABLE a (x)", "CREATE VIEW v AS SELECT x FROM a", "DROP TABLE a"],
                    {"key_column": "x"}, "no such table: main.a"),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
def test_databases_that_contradict_their_options(tmp_path, case):
    statements, options, message = REFUSED[case]
    path = put(tmp_path / "t.db", *statements)
    refusal(at(path, **options), f"^sql sqlite:///{path}.*{message}")


def test_wrong_paths(tmp_path):
    refusal(at(tmp_path / "no.db"), "unable to open .* check dataset.storage.url")
    for content in (b"", b"SQLite format 3", b"x" * 5000):
        (tmp_path / "x.db").write_bytes(content)
        refusal(at(tmp_path / "x.db"), "is not a database|of: none")
    refusal(at(tmp_path), "check dataset.storage.url")
