"""SQLite files of other programs: queries that would do more, databases that are another."""

import os

import pytest

from tests.datasets.storages.sqlite_tables import at, put


@pytest.mark.parametrize("name", ["../secret", "i/../../secret", "/etc/passwd", "a\0b"])
def test_paths_that_leave_the_folder_are_refused(tmp_path, name):
    path = put(tmp_path / "t.db", "CREATE TABLE samples (path)", rows=[("ok",), (name,)])
    with pytest.raises(ValueError, match=r"record 1: .* leads out of its folder") as error:
        len(at(path))
    assert "\n" not in str(error.value)


HOSTILE = {
    "write": ("delete from samples returning *", "syntax error|no such column"),
    "two": ("select 1 as k; select 2", "syntax error|one statement"),
    "attach": ("attach '/tmp/x' as y", "syntax error"),
    "out": ("select 1 as k) union select * from (select 2", "same number of result columns"),
    "extension": ("select load_extension('x') as k", "not authorized|no such function"),
    "pragma": ("select * from pragma_journal_mode('wal')", "no column 'k'"),
    "nonsense": ("nonsense", "no such table: nonsense"),
}


@pytest.mark.parametrize("case", HOSTILE)
def test_queries_that_would_do_more_than_read(tmp_path, case):
    path = put(tmp_path / "t.db", "CREATE TABLE samples (k)", rows=[(1,)])
    before = open(path, "rb").read()
    query, message = HOSTILE[case]
    with pytest.raises(ValueError, match=message) as error:
        len(at(path, query=query, key_column="k"))
    assert "\n" not in str(error.value)
    assert str(error.value).startswith(f"sql sqlite:///{path}")
    assert open(path, "rb").read() == before
    assert os.listdir(tmp_path) == ["t.db"]


def test_a_view_that_computes_without_end_is_stopped(tmp_path):
    endless = "WITH RECURSIVE n(k) AS (SELECT 1 UNION ALL SELECT k FROM n) "
    path = put(tmp_path / "t.db", f"CREATE VIEW v AS {endless} SELECT k FROM n WHERE k = 2")
    with pytest.raises(ValueError, match=r"computes for longer than 0\.05 s; give a query"):
        len(at(path, key_column="k", timeout_s=0.05))


REFUSED = {
    "none": (["CREATE TABLE samples (a)"], {}, "the table is empty"),
    "two_tables": (["CREATE TABLE a (x)", "CREATE TABLE b (x)"], {},
                   "tables: 'a', 'b'; name one: dataset.storage.table"),
    "no_tables": (["CREATE TABLE a (x)", "DROP TABLE a"], {}, "tables: none; name one"),
    "no_table": (["CREATE TABLE a (x)"], {"table": "b"}, "no table 'b'; tables: 'a'"),
    "no_label": (["CREATE TABLE a (x)"], {"label_column": "y"}, "no column 'y'; columns: x"),
    "view": (["CREATE VIEW v AS SELECT 1 AS x"], {}, "name a column whose values differ: "),
    "query": (["CREATE TABLE a (x)"], {"query": "select x from a"},
              "rows of a query have nothing to find them by"),
    "query_key": (["CREATE TABLE a (x)"], {"query": "select x from a", "key_column": "y"},
                  "no column 'y'; columns: x"),
    "composite": (["CREATE TABLE a (x, y, PRIMARY KEY (x, y)) WITHOUT ROWID"], {},
                  "its primary key has 2 columns"),
    "two_types": (["CREATE TABLE a (x)", "INSERT INTO a VALUES (1), (2), ('1')"],
                  {"key_column": "x"}, "record 2: the key is '1', of another type than those"),
    "twice": (["CREATE TABLE a (x)", "INSERT INTO a VALUES (1), (2), (1)"], {"key_column": "x"},
              "key 1 stands twice; take a column whose values differ"),
    "no_key": (["CREATE TABLE a (x)", "INSERT INTO a VALUES (1), (NULL)"], {"key_column": "x"},
               "the key is missing in 1 of 2 rows: column 'x'"),
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
        len(at(path, **options))
    assert "\n" not in str(error.value)
    assert str(error.value).startswith(f"sql sqlite:///{path}")


def test_wrong_paths(tmp_path):
    with pytest.raises(ValueError, match=r"No such file or directory; set dataset\.storage\.url"):
        len(at(str(tmp_path / "no.db")))
    for content in (b"", b"SQLite format 3", b"x" * 5000):
        (tmp_path / "x.db").write_bytes(content)
        with pytest.raises(ValueError, match="it is no SQLite file"):
            len(at(str(tmp_path / "x.db")))
    with pytest.raises(ValueError, match=r"Is a directory; check dataset\.storage\.url$"):
        len(at(str(tmp_path)))
    with pytest.raises(ValueError, match="table and query, expected one of them"):
        at("t.db", table="a", query="select 1")
