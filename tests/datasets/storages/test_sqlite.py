"""SQLite: tables, views and queries, what others write to meanwhile, and damage anywhere."""

import contextlib
import math
import multiprocessing
import os
import pickle
import shutil
import sqlite3
import threading

import numpy as np
import pytest

from datasets.formats import sqlite_files
from datasets.formats.npy_bytes import write_npy
from datasets.sample import BadRecord, Record
from datasets.storages.sqlite import SqliteStorage
from tests.contracts.storage import check_storage, summary
from tests.datasets.storages.tables import images

rng = np.random.default_rng(0)


def put(path, *statements, rows=(), insert=None, **options):
    """Write a database by the library itself."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with contextlib.closing(sqlite3.connect(path)) as database, database:
        for name, value in options.items():
            database.execute(f"PRAGMA {name}={value}")
        for statement in statements:
            database.execute(statement)
        if rows:
            marks = ", ".join("?" * len(rows[0]))
            database.executemany(insert or f"INSERT INTO samples VALUES ({marks})", rows)
    return str(path)


TABLE = "CREATE TABLE samples (name TEXT, label TEXT, age INT, image BLOB)"
CLASSES = ["cat", "dog", "ürm"]


def put_samples(path, encoded, create=TABLE, **options):
    rows = [(f"ü/{i}.jpg", CLASSES[i % 3], i * i, b) for i, b in enumerate(encoded)]
    return put(path, create, rows=rows, **options)


def sample_records(encoded, *, by_name=False):
    return [
        (f"ü/{i}.jpg" if by_name else str(i + 1),
         {"image": b, "label": i % 3, "age": i * i} | ({} if by_name else {"name": f"ü/{i}.jpg"}))
        for i, b in enumerate(encoded)
    ]  # fmt: skip


def everything(storage):
    return summary(storage.read(np.arange(len(storage))))


@pytest.mark.parametrize("options", [{}, {"page_size": 512, "encoding": "'UTF-16be'"},
                                     {"journal_mode": "wal", "auto_vacuum": "full"}])  # fmt: skip
def test_contract(tmp_path, options):
    encoded = images(64, largest=20_000)
    path = put_samples(tmp_path / "a/t?#%.db", encoded, **options)
    shutil.copytree(tmp_path / "a", tmp_path / "b")
    check_storage(
        lambda: SqliteStorage(path),
        sample_records(encoded),
        make_copy=lambda: SqliteStorage(str(tmp_path / "b/t?#%.db")),
        start_methods=("fork",) if options else ("fork", "spawn", "forkserver"),
    )
    storage = SqliteStorage(path)
    assert storage.index.class_names == tuple(CLASSES)
    assert storage.index.column("size_bytes").tolist() == list(map(len, encoded))
    assert len([p for p in tmp_path.rglob("*") if p.is_file()]) == 2, "nothing is written there"


SOURCES = {
    "without_rowid": (TABLE.replace("TEXT,", "TEXT PRIMARY KEY,", 1) + " WITHOUT ROWID", {}, {}),
    "view": (TABLE, {"table": "v"}, {"key_column": "name"}),
    "query": (TABLE, {"query": "select * from samples where age >= 0 -- all"},
              {"key_column": "name"}),
    "key": (TABLE, {"table": "SAMPLES"}, {"key_column": "name"}),
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
    if case == "without_rowid":
        records.sort()
        assert [record.key for record in SqliteStorage(path).read(np.array([3, 0]))] == [
            records[3][0], records[0][0]]  # fmt: skip
    check_storage(lambda: SqliteStorage(path, **options, **key), records, start_methods=("fork",))


def test_keys_of_all_types(tmp_path):
    keys = ["a", "A", 7, b"\xff\0", "", b"a'", -(2**63), "é\0é"]
    path = put(tmp_path / "t.db", "CREATE TABLE samples (k, v)", "CREATE INDEX i ON samples (k)",
               rows=[(key, i) for i, key in enumerate(keys)])  # fmt: skip
    put(tmp_path / "t.db", "INSERT INTO samples VALUES (CAST(x'ff78' AS TEXT), 8)")
    names = ["a", "A", "7", "\\xff\0", "", "a'", str(-(2**63)), "é\0é", "\\xffx"]
    for source in ({"table": "samples"}, {"query": "select * from samples"}):
        check_storage(
            lambda source=source: SqliteStorage(path, key_column="k", **source),
            [(name, {"v": i}) for i, name in enumerate(names)],
            start_methods=(),
        )


def test_types_and_missing_values(tmp_path):
    array = rng.normal(size=(2, 3)).astype(np.float32)
    rows = [(1, 2, 1.5, 3, "t", b"b", None, write_npy(array), '{"x": [1]}', 1),
            (2, None, None, 0.5, None, None, None, None, None, "x")]  # fmt: skip
    path = put(tmp_path / "t.db", "CREATE TABLE samples (i, n, x, m, s, b, e, a, j, mixed)",
               rows=rows)  # fmt: skip
    storage = SqliteStorage(path, types={"a": "array", "j": "json"})
    first, second = (record.fields for record in storage.read(np.arange(2)))
    assert first.pop("a").tolist() == array.tolist()
    assert first == {"i": 1, "n": 2.0, "x": 1.5, "m": 3.0, "s": "t", "b": b"b", "e": None,
                     "j": {"x": [1]}, "mixed": "1"}  # fmt: skip
    assert isinstance(first["i"], int) and isinstance(first["n"], float)
    assert math.isnan(second.pop("n")) and math.isnan(second.pop("x"))
    assert second == {"i": 2, "m": 0.5, "s": None, "b": None, "e": None, "a": None, "j": None,
                      "mixed": "x"}  # fmt: skip
    few = SqliteStorage(path, columns=["i"]).read(np.array([1]))
    assert few == [Record(1, "2", {"i": 2})]


@pytest.mark.parametrize("damage", [b"", b"x", b"\x93NUMPY\1\0", "text"])
def test_arrays_that_are_none(tmp_path, damage):
    whole = write_npy(np.zeros(3))
    objects = pickle.dumps(print)
    header = whole[:10] + whole[10:128].replace(b"'<f8'", b"'|O' ")
    for value in (damage, whole[:-1], whole + b"x", header + objects,
                  whole.replace(b"(3,)", b"(9999999999,)"[:4].ljust(4))):  # fmt: skip
        path = put(tmp_path / "t.db", "DROP TABLE IF EXISTS samples", "CREATE TABLE samples (a)",
                   rows=[(value,), (whole,)])  # fmt: skip
        bad, good = SqliteStorage(path, types={"a": "array"}).read(np.arange(2))
        assert isinstance(bad, BadRecord) and "column 'a' " in bad.cause
        assert good.fields["a"].tolist() == [0, 0, 0]


def test_labels(tmp_path):
    def labels(*values, **options):
        path = put(tmp_path / "l.db", "DROP TABLE IF EXISTS samples",
                   "CREATE TABLE samples (label)", rows=[(v,) for v in values])  # fmt: skip
        index = SqliteStorage(path, **options).index
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
        ((1, 1 << 40), "is no class id"),
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
    a, b, gone, out, none, five = SqliteStorage(path).read(np.arange(6))
    assert [r.fields for r in (a, b)] == [{"image": name.encode()} for name in names[:2]]
    assert "No such file" in gone.cause
    assert "leads out of its folder by a link" in out.cause
    assert "its row has no image, expected its bytes, or the path of a file" in none.cause
    assert "its row has 5 for an image" in five.cause
    linked = SqliteStorage(path, follow_symlinks=True).read(np.array([3]))
    assert linked[0].fields == {"image": b"secret"}
    assert "size_bytes" not in SqliteStorage(path).index.columns


@pytest.mark.parametrize("name", ["../secret", "i/../../secret", "/etc/passwd", "a\0b"])
def test_paths_that_leave_the_folder_are_refused(tmp_path, name):
    path = put(tmp_path / "t.db", "CREATE TABLE samples (path)", rows=[("ok",), (name,)])
    with pytest.raises(ValueError, match=r"record 1: .* leads out of its folder") as error:
        len(SqliteStorage(path))
    assert "\n" not in str(error.value)


def test_tables_with_odd_columns(tmp_path):
    create = (
        'CREATE TABLE samples (rowid TEXT, "a ""b""" INT, s AS (upper(rowid)) STORED, '
        "v AS (length(rowid)))"
    )
    path = put(tmp_path / "t.db", create, rows=[("x", 1), ("yy", 2)],
               insert='INSERT INTO samples (rowid, "a ""b""") VALUES (?, ?)')  # fmt: skip
    check_storage(
        lambda: SqliteStorage(path),
        [("1", {"rowid": "x", 'a "b"': 1, "s": "X", "v": 1}),
         ("2", {"rowid": "yy", 'a "b"': 2, "s": "YY", "v": 2})],
        start_methods=(),
    )  # fmt: skip


def test_text_that_is_no_utf8_is_a_bad_record(tmp_path):
    path = put(tmp_path / "t.db", "CREATE TABLE samples (s)", rows=[("ä",), ("b",)])
    put(tmp_path / "t.db", "INSERT INTO samples VALUES (CAST(x'c328' AS TEXT))")
    good, _, bad = SqliteStorage(path).read(np.arange(3))
    assert good.fields == {"s": "ä"}
    assert bad.cause == "column 's' is no UTF-8"


HOSTILE = {
    "write": ("delete from samples returning *", "syntax error|no such column"),
    "two": ("select 1 as k; select 2", "syntax error|one statement"),
    "attach": ("attach '/tmp/x' as y", "syntax error"),
    "out": ("select 1 as k) union select * from (select 2", "same number of result columns"),
    "extension": ("select load_extension('x') as k", "not authorized"),
    "pragma": ("select * from pragma_journal_mode('wal')", "not authorized|no such"),
    "nonsense": ("nonsense", "no such table: nonsense"),
    "huge": ("select zeroblob(999999999) as k", "too big"),
}


@pytest.mark.parametrize("case", HOSTILE)
def test_queries_that_would_do_more_than_read(tmp_path, case):
    path = put(tmp_path / "t.db", "CREATE TABLE samples (k)", rows=[(1,)])
    before = open(path, "rb").read()
    query, message = HOSTILE[case]
    with pytest.raises(ValueError, match=message) as error:
        len(SqliteStorage(path, query=query, key_column="k"))
    assert "\n" not in str(error.value)
    assert str(error.value).startswith(f"sqlite {path}: ")
    assert open(path, "rb").read() == before
    assert os.listdir(tmp_path) == ["t.db"]


def test_a_view_that_computes_without_end_is_stopped(tmp_path, monkeypatch):
    monkeypatch.setattr("datasets.formats.sqlite_table.READ_LIMIT_S", 0.05)
    endless = "WITH RECURSIVE n(k) AS (SELECT 1 UNION ALL SELECT k FROM n) "
    path = put(tmp_path / "t.db", f"CREATE VIEW v AS {endless} SELECT k FROM n WHERE k = 2")
    with pytest.raises(ValueError, match="computes for too long"):
        len(SqliteStorage(path, key_column="k"))


REFUSED = {
    "none": (["CREATE TABLE samples (a)"], {}, "it has no row; nothing to read"),
    "two_tables": (["CREATE TABLE a (x)", "CREATE TABLE b (x)"], {},
                   "tables: 'a', 'b'; name one: dataset.storage.table"),
    "no_tables": (["CREATE TABLE a (x)", "DROP TABLE a"], {}, "tables: none; name one"),
    "no_table": (["CREATE TABLE a (x)"], {"table": "b"}, "no table 'b'; tables: 'a'"),
    "schema": (["CREATE TABLE a (x)"], {"table": "sqlite_master"}, "no table 'sqlite_master'"),
    "no_label": (["CREATE TABLE a (x)"], {"label_column": "y"}, "no column 'y'; columns: x"),
    "view": (["CREATE VIEW v AS SELECT 1 AS x"], {}, "name a column whose values differ: "),
    "query": (["CREATE TABLE a (x)"], {"query": "select x from a"}, "rows of a query have no num"),
    "query_key": (["CREATE TABLE a (x)"], {"query": "select x from a", "key_column": "y"},
                  "no column 'y'; columns: x"),
    "composite": (["CREATE TABLE a (x, y, PRIMARY KEY (x, y)) WITHOUT ROWID"], {},
                  "the table or view 'a' have no numbers"),
    "twice": (["CREATE TABLE a (x)", "INSERT INTO a VALUES (1), (2), ('1')"], {"key_column": "x"},
              "key_column 'x': key '1' stands twice, in the records 0 and 2"),
    "no_key": (["CREATE TABLE a (x)", "INSERT INTO a VALUES (1), (NULL)"], {"key_column": "x"},
               "record 1: the key is missing"),
    "float_key": (["CREATE TABLE a (x)", "INSERT INTO a VALUES (1.5)"], {"key_column": "x"},
                  "record 0: the key is 1.5"),
    "types": (["CREATE TABLE a (x)"], {"types": {"y": "json"}}, "types: no field 'y'; fields: x"),
    "reserved": (['CREATE TABLE a ("index")'], {}, "'index' has a name that samples use"),
    "broken_view": (["CREATE TABLE a (x)", "CREATE VIEW v AS SELECT x FROM a", "DROP TABLE a"],
                    {"key_column": "x"}, "no such table: main.a"),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
def test_databases_that_cannot_be_what_is_said(tmp_path, case):
    statements, options, message = REFUSED[case]
    path = put(tmp_path / "t.db", *statements)
    with pytest.raises(ValueError, match=message) as error:
        len(SqliteStorage(path, **options))
    assert "\n" not in str(error.value)
    assert str(error.value).startswith(f"sqlite {path}: ")


def test_wrong_paths(tmp_path):
    with pytest.raises(ValueError, match="expected an SQLite file, got nothing there; set data"):
        len(SqliteStorage(str(tmp_path / "no.db")))
    with pytest.raises(ValueError, match="expected an SQLite file, got a folder"):
        len(SqliteStorage(str(tmp_path)))
    for content in (b"", b"SQLite format 3", b"x" * 5000):
        (tmp_path / "x.db").write_bytes(content)
        with pytest.raises(ValueError, match="damaged or no SQLite file: it is no SQLite file"):
            len(SqliteStorage(str(tmp_path / "x.db")))
    with pytest.raises(ValueError, match="table and query, expected one of them"):
        SqliteStorage("t.db", table="a", query="select 1")


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
    monkeypatch.setattr("datasets.file_reader._PAUSES_S", (0.01,))
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


def test_a_second_start_reads_nothing_until_the_file_changes(tmp_path, monkeypatch):
    path = put_samples(tmp_path / "t.db", images(5))
    first = SqliteStorage(path).fingerprint()
    with monkeypatch.context() as patch:
        patch.setattr("datasets.storages.sqlite.scan", None)
        assert SqliteStorage(path).fingerprint() == first
    put_samples(tmp_path / "t.db", images(6), create="DELETE FROM samples")
    assert len(SqliteStorage(path)) == 6
    os.unlink(path)
    put_samples(tmp_path / "t.db", images(5, seed=1))
    assert SqliteStorage(path).fingerprint() != first


def test_the_images_are_not_read_for_the_index(tmp_path):
    path = put_samples(tmp_path / "t.db", [b"x" * 100_000] * 50)
    content = bytearray(open(path, "rb").read())
    pages = [i for i in range(0, len(content), 4096) if content[i + 5 : i + 4001] == b"x" * 3996]
    assert len(pages) > 1000
    for at in pages:
        content[at : at + 4] = b"\xff\xff\xff\xff"  # the next page of the image: nowhere
    with open(path, "wb") as file:
        file.write(content)
    storage = SqliteStorage(path)
    assert storage.index.column("size_bytes").tolist() == [100_000] * 50
    assert all(
        "cannot be read (database disk image is malformed)" in record.cause
        for record in storage.read(np.arange(3))
    )


def test_a_damaged_image_spoils_its_record_alone(tmp_path):
    encoded = [rng.bytes(9000) for _ in range(20)]
    path = put_samples(tmp_path / "t.db", encoded)
    storage = SqliteStorage(path)
    assert len(storage) == 20
    with open(path, "r+b") as file:
        at = file.read().index(encoded[7][3000:3100]) // 4096 * 4096
        file.seek(at)
        file.write(b"\xff\xff\xff\xff")
    check_storage(
        lambda: storage,
        [(key, None if key == "8" else fields) for key, fields in sample_records(encoded)],
        start_methods=("fork",),
    )


def test_a_fork_while_a_thread_reads_waits_for_nothing(tmp_path):
    encoded = images(200, largest=30_000)
    storage = SqliteStorage(put_samples(tmp_path / "t.db", encoded))
    assert len(storage) == 200
    stop = threading.Event()

    def read_on():
        while not stop.is_set():
            storage.read(np.arange(200))

    def in_child():
        os._exit(storage.read(np.array([3]))[0].fields["image"] == encoded[3])

    threads = [threading.Thread(target=read_on) for _ in range(2)]
    for thread in threads:
        thread.start()
    processes = [multiprocessing.get_context("fork").Process(target=in_child) for _ in range(8)]
    for process in processes:
        process.start()
    for process in processes:
        process.join(20)
        process.kill()
    stop.set()
    for thread in threads:
        thread.join()
    assert [process.exitcode for process in processes] == [1] * 8


def test_a_file_cut_short_anywhere_is_an_error_or_bad_records(tmp_path):
    encoded = images(60, largest=3000)
    path = put_samples(tmp_path / "t.db", encoded, page_size=512)
    content = open(path, "rb").read()
    wanted = {key: fields for key, fields in sample_records(encoded)}
    for size in {0, 1, 15, 16, 20, 99, 100, 511, 512, 513, 1024, 5000, len(content) // 2,
                 len(content) - 512, len(content) - 1}:  # fmt: skip
        with open(path, "wb") as file:
            file.write(content[:size])
        with contextlib.suppress(ValueError):
            found = everything(SqliteStorage(path))
            assert any(fields is None for *_, fields in found)
            assert all(fields in (None, wanted[key]) for _, key, fields in found)


def test_a_flipped_bit_anywhere_never_ends_the_interpreter(tmp_path):
    path = put_samples(tmp_path / "t.db", images(60, largest=60), page_size=512)
    content = open(path, "rb").read()
    refused = bad = 0
    for at in [*rng.integers(0, 200, 60).tolist(), *rng.integers(0, len(content), 200).tolist()]:
        flipped = bytearray(content)
        flipped[at] ^= 1 << int(rng.integers(8))
        with open(path, "wb") as file:
            file.write(flipped)
        try:
            storage = SqliteStorage(path)
            records = storage.read(np.arange(len(storage)))
        except ValueError as error:
            assert "\n" not in str(error)
            refused += 1
        else:
            bad += any(isinstance(record, BadRecord) for record in records)
    assert refused > 10
    assert bad > 1
