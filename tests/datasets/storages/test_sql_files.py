"""SQLite files of other programs: tables, views and queries, with values of every type."""

from __future__ import annotations

import math
import os
import pickle
import shutil

import numpy as np
import pytest

from penstock.core.arrays import write_npy
from penstock.core.sample import BadRecord, Record
from tests.contracts.storage import check_storage
from tests.datasets.storages.sqlite_tables import (
    CLASSES,
    TABLE,
    at,
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
    path = put_samples(tmp_path / "a/t #%.db", encoded, **options)
    shutil.copytree(tmp_path / "a", tmp_path / "b")
    check_storage(
        lambda: at(path),
        sample_records(encoded),
        make_copy=lambda: at(str(tmp_path / "b/t #%.db")),
        processes=("forked",) if options else ("forked", "new"),
    )
    storage = at(path)
    assert storage.index.class_names == tuple(CLASSES)
    assert storage.index.column("size_bytes").tolist() == list(map(len, encoded))
    assert len([p for p in tmp_path.rglob("*") if p.is_file()]) == 2, "nothing is written there"


SOURCES = {
    "without_rowid": (TABLE.replace("TEXT,", "TEXT PRIMARY KEY,", 1) + " WITHOUT ROWID", {}, {}),
    "view": (TABLE, {"table": "v"}, {"key_column": "name"}),
    "query": (TABLE, {"query": "select * from samples where age >= 0 -- all"},
              {"key_column": "name"}),
    "key": (TABLE, {"table": "samples"}, {"key_column": "name"}),
    "primary": (TABLE.replace("TEXT,", "TEXT PRIMARY KEY,", 1), {}, {}),
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


@pytest.mark.parametrize("index", ["", "CREATE INDEX i ON samples (k)"])
def test_a_large_table_without_an_index_is_reported(tmp_path, monkeypatch, caplog, index):
    monkeypatch.setattr("penstock.datasets.storages.sql.table._MANY_ROWS", 3)
    statements = ["CREATE TABLE samples (k)", *([index] if index else [])]
    path = put(tmp_path / "t.db", *statements, rows=[(1,), (2,), (3,)])
    assert len(at(path, key_column="k")) == 3
    assert ("CREATE INDEX penstock_key ON samples (k)" in caplog.text) == (not index)


KEYS = {"texts": (["a", "A", "", "a'", "é"], ["", "A", "a", "a'", "é"]),
        "numbers": ([7, 0, -(2**63)], [str(-(2**63)), "0", "7"]),
        "bytes": ([b"\xff", b"a"], ["a", "\\xff"])}  # fmt: skip


@pytest.mark.parametrize("case", KEYS)
def test_keys_of_all_types(tmp_path, case):
    keys, names = KEYS[case]
    path = put(tmp_path / "t.db", "CREATE TABLE samples (k, v)", "CREATE INDEX i ON samples (k)",
               rows=[(key, i) for i, key in enumerate(keys)])  # fmt: skip
    places = sorted(range(len(keys)), key=lambda i: keys[i])
    for source in ({"table": "samples"}, {"query": "select * from samples"}):
        check_storage(
            lambda source=source: at(path, key_column="k", **source),
            [(name, {"v": i}) for name, i in zip(names, places, strict=True)],
            processes=(),
        )


def test_types_and_missing_values(tmp_path):
    array = rng.normal(size=(2, 3)).astype(np.float32)
    rows = [(1, 2, 1.5, 3, "t", b"b", None, write_npy(array), '{"x": [1]}', 1),
            (2, None, None, 0.5, None, None, None, None, None, "x")]  # fmt: skip
    path = put(tmp_path / "t.db", "CREATE TABLE samples (i, n, x, m, s, b, e, a, j, mixed)",
               rows=rows)  # fmt: skip
    storage = at(path, types={"a": "array", "j": "json"})
    first, second = (record.fields for record in storage.read(np.arange(2)))
    assert first.pop("a").tolist() == array.tolist()
    assert first == {"i": 1, "n": 2.0, "x": 1.5, "m": 3.0, "s": "t", "b": b"b", "e": None,
                     "j": {"x": [1]}, "mixed": "1"}  # fmt: skip
    assert isinstance(first["i"], int) and isinstance(first["n"], float)
    assert math.isnan(second.pop("n")) and math.isnan(second.pop("x"))
    assert second == {"i": 2, "m": 0.5, "s": None, "b": None, "e": None, "a": None, "j": None,
                      "mixed": "x"}  # fmt: skip
    few = at(path, columns=["i"]).read(np.array([1]))
    assert few == [Record(1, "2", {"i": 2})]


def test_labels(tmp_path):
    def labels(*values, **options):
        path = put(tmp_path / "l.db", "DROP TABLE IF EXISTS samples",
                   "CREATE TABLE samples (label)", rows=[(v,) for v in values])  # fmt: skip
        index = at(path, **options).index
        return index.column("label").tolist(), index.class_names

    assert labels(3, 0, 1) == ([3, 0, 1], ("0", "1", "2", "3"))
    assert labels("b", "10", "a") == ([2, 0, 1], ("10", "a", "b"))
    assert labels("b", "a", classes=["a", "x", "b"]) == ([2, 0], ("a", "x", "b"))
    for values, message in (
        (("a", None), "column 'label': the label of record 1 is missing, expected whole numbers"),
        ((1, "a"), "the label of record 1 is 'a'"),
        ((1, 1.5), "the label of record 1 is 1.5"),
        ((b"a", b"b"), "the label of record 0 is b'a'"),
        ((1, -1), "label -1 in record 1, expected 0 or more"),
        ((1, 1 << 40), "is not a class id"),
    ):
        with pytest.raises(ValueError, match=message):
            labels(*values)


def test_images_in_files_beside_it(tmp_path):
    names = ["i/a.jpg", "i/b ü.jpg", "gone.jpg", "out.jpg"]
    path = put(tmp_path / "d/t.db", "CREATE TABLE samples (file_name)", rows=[(n,) for n in names])
    put(tmp_path / "d/t.db", "INSERT INTO samples VALUES (NULL)", "INSERT INTO samples VALUES (5)")
    (tmp_path / "d/i").mkdir()
    for name in names[:2]:
        (tmp_path / "d" / name).write_bytes(name.encode())
    (tmp_path / "secret").write_bytes(b"secret")
    (tmp_path / "d/out.jpg").symlink_to(tmp_path / "secret")
    a, b, gone, out, none, five = at(path).read(np.arange(6))
    assert [r.fields for r in (a, b)] == [{"image": name.encode()} for name in names[:2]]
    assert "No such file" in gone.cause
    assert "leads out of its folder by a link" in out.cause
    assert "its row lacks an image, expected its bytes, or the path of a file" in none.cause
    assert "its row has 5 for an image" in five.cause
    linked = at(path, follow_symlinks=True).read(np.array([3]))
    assert linked[0].fields == {"image": b"secret"}
    assert "size_bytes" not in at(path).index.columns


def test_tables_with_odd_columns(tmp_path):
    create = (
        'CREATE TABLE samples (rowid TEXT, "a ""b""" INT, s AS (upper(rowid)) STORED, '
        "v AS (length(rowid)))"
    )
    path = put(tmp_path / "t.db", create, rows=[("x", 1), ("yy", 2)],
               insert='INSERT INTO samples (rowid, "a ""b""") VALUES (?, ?)')  # fmt: skip
    check_storage(
        lambda: at(path),
        [("x", {'a "b"': 1, "s": "X", "v": 1}), ("yy", {'a "b"': 2, "s": "YY", "v": 2})],
        processes=(),
    )  # fmt: skip


def test_a_second_start_reads_nothing_until_the_file_changes(tmp_path, monkeypatch):
    path = put_samples(tmp_path / "t.db", images(5))
    first = at(path).fingerprint()
    with monkeypatch.context() as patch:
        patch.setattr("penstock.datasets.storages.sql.server._open_file", None)
        assert at(path).fingerprint() == first
    put_samples(tmp_path / "t.db", images(6), create="DELETE FROM samples")
    assert len(at(path)) == 6
    os.unlink(path)
    put_samples(tmp_path / "t.db", images(5, seed=1))
    assert at(path).fingerprint() != first


def test_images_are_not_read_for_the_index(tmp_path):
    path = put_samples(tmp_path / "t.db", [b"x" * 100_000] * 50)
    content = bytearray(open(path, "rb").read())
    pages = [i for i in range(0, len(content), 4096) if content[i + 5 : i + 4001] == b"x" * 3996]
    assert len(pages) > 1000
    for place in pages:
        content[place : place + 4] = b"\xff\xff\xff\xff"  # the next page of the image: nowhere
    with open(path, "wb") as file:
        file.write(content)
    storage = at(path)
    assert storage.index.column("size_bytes").tolist() == [100_000] * 50
    causes = [record.cause for record in storage.read(np.arange(3))]
    assert causes == ["cannot be read (database disk image is malformed)"] * 3


@pytest.mark.parametrize("damage", [b"", b"x", b"\x93NUMPY\1\0", "text"])
def test_arrays_that_are_none(tmp_path, damage):
    whole = write_npy(np.zeros(3))
    objects = pickle.dumps(print)
    header = whole[:10] + whole[10:128].replace(b"'<f8'", b"'|O' ")
    for value in (damage, whole[:-1], whole + b"x", header + objects,
                  whole.replace(b"(3,)", b"(9999999999,)"[:4].ljust(4))):  # fmt: skip
        path = put(tmp_path / "t.db", "DROP TABLE IF EXISTS samples", "CREATE TABLE samples (a)",
                   rows=[(value,), (whole,)])  # fmt: skip
        bad, good = at(path, types={"a": "array"}).read(np.arange(2))
        assert isinstance(bad, BadRecord) and "column 'a' " in bad.cause
        assert good.fields["a"].tolist() == [0, 0, 0]


def test_text_that_is_no_utf8_is_a_bad_record(tmp_path):
    path = put(tmp_path / "t.db", "CREATE TABLE samples (s)", rows=[("ä",), ("b",)])
    put(tmp_path / "t.db", "INSERT INTO samples VALUES (CAST(x'c328' AS TEXT))")
    good, _, bad = at(path).read(np.arange(3))
    assert good.fields == {"s": "ä"}
    assert bad.cause == "a text is no UTF-8"
