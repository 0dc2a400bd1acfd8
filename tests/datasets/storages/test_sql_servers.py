"""PostgreSQL and MariaDB: what the storage promises, and what happens when the server does not."""

from __future__ import annotations

import decimal
import math
import time
import uuid
from types import SimpleNamespace

import numpy as np
import pytest

from penstock.core.arrays import write_npy
from penstock.core.sample import BadRecord, Record
from penstock.core.user_errors import ExplainedError
from penstock.datasets.storages.sql import SqlStorage
from penstock.datasets.storages.sql import server as sql_server
from tests.contracts.storage import (
    check_forks_while_threads_read,
    check_storage,
    read_all,
    summary,
)
from tests.datasets.storages.sql_servers import Proxy, running
from tests.datasets.storages.tables import images

pytestmark = pytest.mark.service
CLASSES = ("cat", "dog", "ürm")
TABLE = (
    "CREATE TABLE samples (id INT PRIMARY KEY, name VARCHAR(50), label VARCHAR(9), age INT, "
    "image BLOB)"
)


@pytest.fixture(scope="module", params=["postgresql", "mariadb"])
def running_server(request):
    with running(request.param) as server:
        yield server


@pytest.fixture
def server(running_server):
    running_server.put("DROP VIEW IF EXISTS v", "DROP TABLE IF EXISTS samples")
    running_server.put("DROP TABLE IF EXISTS others")
    return running_server


@pytest.fixture
def proxy(server):
    proxy = Proxy(server)
    yield proxy
    proxy.close()


@pytest.fixture
def short_pauses(monkeypatch):
    monkeypatch.setattr(sql_server, "_PAUSES_S", (0.01, 0.02, 0.05))


def put_samples(server, encoded, create=TABLE):
    rows = [(i * 3 - 9, f"ü/{i}.jpg", CLASSES[i % 3], i * i, b) for i, b in enumerate(encoded)]
    server.put(create, rows=rows)


def sample_records(encoded, *, by_name=False):
    return [
        (f"ü/{i}.jpg" if by_name else str(i * 3 - 9),
         {"image": b, "label": i % 3, "age": i * i}
         | ({"id": i * 3 - 9} if by_name else {"name": f"ü/{i}.jpg"}))
        for i, b in enumerate(encoded)
    ]  # fmt: skip


def causes(records):
    return {r.key: r.cause for r in records if isinstance(r, BadRecord)}


def test_contract(server):
    encoded = images(64, largest=20_000)
    put_samples(server, encoded)
    server.put(
        "CREATE TABLE others AS SELECT * FROM samples", "ALTER TABLE others ADD PRIMARY KEY (id)"
    )
    check_storage(
        lambda: SqlStorage(server.url, table="samples"),
        sample_records(encoded),
        make_copy=lambda: SqlStorage(server.url, table="others"),
    )
    storage = SqlStorage(server.url, table="samples")
    assert storage.index.class_names == CLASSES
    assert storage.index.column("size_bytes").tolist() == list(map(len, encoded))


QUERY = "select * from samples where age >= 0 and name like '%.jpg' and ':x' <> '%s' -- all"


@pytest.mark.parametrize("options", [{"table": "v"}, {"query": QUERY}, {"table": "samples"}])
def test_contract_by_other_keys(server, options):
    encoded = images(40)
    put_samples(server, encoded)
    server.put("CREATE VIEW v AS SELECT * FROM samples")
    records = sorted(sample_records(encoded, by_name=True))  # as both order these texts
    found = SqlStorage(server.url, key_column="name", **options)
    order = [r.key for r in read_all(found)]
    assert sorted(order) == [key for key, _ in records]
    by_key = dict(records)
    check_storage(
        lambda: SqlStorage(server.url, key_column="name", **options),
        [(key, by_key[key]) for key in order],
        processes=(),
    )


KEYS = {
    "text": ("VARCHAR(20)", ["", "A", "a b", "é", "z'\"\\%s:x"]),
    "bytes": ("BLOB", [b"", b"\0\xff", b"a"]),
    "big": ("BIGINT", [-(2**63), -1, 0, 2**63 - 1]),
    "uuid": ("UUID", [uuid.UUID(int=n) for n in (1, 2, 2**127)]),
    "char": ("CHAR(5)", ["a", "bb"]),
}


@pytest.mark.parametrize("case", KEYS)
def test_keys_of_all_types(server, case):
    kind, keys = KEYS[case]
    server.put(f"CREATE TABLE samples (k {kind}, v INT)",
               rows=[(str(k) if case == "uuid" else k, i) for i, k in enumerate(keys)])  # fmt: skip
    storage = SqlStorage(server.url, key_column="k")
    found = {r.fields["v"]: r.key for r in read_all(storage)}
    names = [k.decode(errors="backslashreplace") if isinstance(k, bytes) else str(k) for k in keys]
    assert [found[i].rstrip(" ") for i in range(len(keys))] == names
    check_storage(
        lambda: SqlStorage(server.url, key_column="k"),
        [(r.key, r.fields) for r in read_all(storage)],
        processes=(),
    )


def test_types_and_missing_values(server):
    array = np.arange(6, dtype=np.float32).reshape(2, 3)
    zone = " WITH TIME ZONE" if server.name == "postgresql" else ""
    server.put(
        "CREATE TABLE samples (id INT PRIMARY KEY, i INT NOT NULL, n INT, x DOUBLE PRECISION, "
        "dec DECIMAL(6,2), s TEXT, b BLOB, e INT, a BLOB, j JSON, t TEXT, d DATE, "
        f"ts TIMESTAMP{zone} NULL, tm TIME, f BOOLEAN)".replace("dec ", "de "),
        rows=[
            (1, 2, 3, 1.5, decimal.Decimal("2.25"), "t", b"b", None, write_npy(array), '{"x": [1]}',
             "[1, 2]", "1970-01-03", "1970-01-01 00:00:01.5", "00:00:02", True),
            (2, 2, *[None] * 13),
        ],
    )  # fmt: skip
    storage = SqlStorage(server.url, types={"a": "array", "t": "json", "j": "json"})
    first, second = (record.fields for record in read_all(storage))
    assert first.pop("a").tolist() == array.tolist()
    micros = 1_000_000
    fraction = micros // 2 if server.name == "postgresql" else 0  # of MariaDB's type
    assert first.pop("ts") in (micros + fraction, 2 * micros)
    assert first == {"i": 2, "n": 3.0, "x": 1.5, "de": 2.25, "s": "t", "b": b"b", "e": None,
                     "j": {"x": [1]}, "t": [1, 2], "d": 2, "tm": 2 * micros, "f": 1}  # fmt: skip
    assert second.pop("i") == 2
    numbers = ("n", "x", "de", "d", "ts", "tm", "f")
    assert all(math.isnan(second.pop(name)) for name in numbers)
    assert set(second.values()) == {None}
    few = SqlStorage(server.url, columns=["i"]).read(np.array([1]))
    assert few == [Record(1, "2", {"i": 2})]


def test_lists_and_types_of_postgresql(server):
    if server.name != "postgresql":
        pytest.skip("has none")
    server.put("CREATE TYPE mood AS ENUM ('sad', 'ok')",
               "CREATE TABLE samples (id INT PRIMARY KEY, l FLOAT[], w TEXT[], m mood, "
               "label BOOLEAN)",
               "INSERT INTO samples VALUES (1, '{1,2}', '{a,b}', 'ok', true)")  # fmt: skip
    [record] = read_all(SqlStorage(server.url))
    assert record.fields.pop("l").tolist() == [1.0, 2.0]
    assert record.fields == {"w": ["a", "b"], "m": "ok", "label": 1}
    server.put("ALTER TABLE samples ADD ip INET DEFAULT '1.2.3.4'")
    with pytest.raises(ValueError, match="column 'ip' is of the type IPv4Address, which no field"):
        len(SqlStorage(server.url))
    assert len(SqlStorage(server.url, columns=["m"])) == 1
    server.put('CREATE SCHEMA "Other s"',
               'CREATE TABLE "Other s"."Rows" ("The key" INT PRIMARY KEY)',
               'INSERT INTO "Other s"."Rows" VALUES (7)')  # fmt: skip
    assert read_all(SqlStorage(server.url, table="Other s.Rows")) == [Record(0, "7", {})]
    with pytest.raises(ValueError, match=r"type dataset.storage.table=Other s\.Rows"):
        len(SqlStorage(server.url, table="Other s.rows"))


def test_rows_that_go_and_change_behind_the_index(server):
    encoded = images(12)
    put_samples(server, encoded)
    server.put("ALTER TABLE samples ADD changed INT DEFAULT 1", "ALTER TABLE samples ADD a BLOB")
    given = {"types": {"a": "array"}, "columns": ["a", "name"]}
    storage = SqlStorage(server.url, **given)
    good = {record.key: record.fields for record in read_all(storage)}
    server.put("DELETE FROM samples WHERE id = -9",
               "UPDATE samples SET label = 'dog' WHERE id = -6 OR id = -9",
               "UPDATE samples SET label = 'new' WHERE id = 0",
               "UPDATE samples SET image = NULL WHERE id = 3",
               "UPDATE samples SET a = image WHERE id = 6",
               "UPDATE samples SET name = 'other' WHERE id = 9",
               "INSERT INTO samples (id, label, image, changed) SELECT 25, 'cat', image, 2 "
               "FROM samples WHERE id = 9")  # fmt: skip
    records = read_all(storage)
    bad = causes(records)
    assert sorted(bad) == ["-9", "0", "3", "6"], "-6 has the label that it had"
    assert bad["-9"] == "its row is gone"
    assert bad["0"].startswith("column 'label' is 'new', and changed")
    assert bad["3"].startswith("column 'image' had ")
    assert bad["6"].startswith("column 'a' ")
    changed = next(record for record in records if record.key == "9")
    assert changed.fields == good["9"] | {"name": "other"}, "what is read is what is there"
    server.put("UPDATE samples SET a = NULL", "DELETE FROM samples WHERE image IS NULL")
    again = SqlStorage(server.url, **given)
    assert len(again) == 11 and not causes(read_all(again)), "other rows: listed anew"
    server.put("UPDATE samples SET label = 'ürm'")
    assert len(causes(read_all(SqlStorage(server.url, **given)))) > 5, "which cannot be seen"
    told = SqlStorage(server.url, version_column="changed", **given)
    assert not causes(read_all(told))
    server.put("UPDATE samples SET label = 'cat', changed = 3")
    assert not causes(read_all(SqlStorage(server.url, version_column="changed", **given)))


def test_a_table_in_the_place_of_another_is_listed_anew(server):
    put_samples(server, images(5))
    first = SqlStorage(server.url).fingerprint()
    assert SqlStorage(server.url).fingerprint() == first
    server.put("DROP TABLE samples")
    if server.name == "mariadb":
        time.sleep(1.1)  # tells when a table was made by the second
    put_samples(server, images(5, seed=1))
    assert SqlStorage(server.url).fingerprint() != first
    assert not causes(read_all(SqlStorage(server.url)))


def test_a_second_start_lists_nothing(server, monkeypatch):
    put_samples(server, images(5))
    first = SqlStorage(server.url).fingerprint()
    monkeypatch.setattr(sql_server.Server, "in_order", None)
    assert SqlStorage(server.url).fingerprint() == first


def test_connections_that_are_cut_while_rows_are_listed(server, proxy, short_pauses, monkeypatch):
    monkeypatch.setattr("penstock.datasets.storages.sql.storage._SCAN_ROWS", 20)
    server.put("CREATE TABLE samples (id INT PRIMARY KEY, name VARCHAR(400))",
               rows=[(i, "x" * 390) for i in range(1000)])  # fmt: skip
    proxy.cut_after = 80_000
    storage = SqlStorage(server.through(proxy.port), key_column="id", label_column="name")
    assert storage.index.keys(np.arange(len(storage))) == [str(i) for i in range(1000)]
    assert proxy.cuts > 3


def test_equal_texts_of_a_collation_come_once_though_connections_are_cut(
    server, proxy, short_pauses, monkeypatch
):
    monkeypatch.setattr("penstock.datasets.storages.sql.storage._SCAN_ROWS", 7)
    keys = [name for n in range(200) for name in (f"{n:03d}a", f"{n:03d}A")]
    server.put("CREATE TABLE samples (k VARCHAR(20), label VARCHAR(300))",
               rows=[(key, "x" * 290) for key in keys])  # fmt: skip
    proxy.cut_after = 30_000
    storage = SqlStorage(server.through(proxy.port), key_column="k")
    assert sorted(storage.index.keys(np.arange(len(storage)))) == sorted(keys)
    assert proxy.cuts > 3
    proxy.cut_after = 0
    assert [record.key for record in storage.read(np.array([5, 4]))] == storage.index.keys(
        np.array([5, 4])
    )


def test_connections_that_end_while_rows_are_read(server, short_pauses):
    encoded = images(200)
    put_samples(server, encoded)
    storage = SqlStorage(server.url)
    expected = summary(read_all(storage))
    ended = 0
    for _ in range(5):
        ended += server.kill_others()
        assert summary(read_all(storage)) == expected
    assert ended >= 5


def test_a_fork_while_threads_read_waits_for_nothing(server):
    put_samples(server, images(200, largest=30_000))
    storage = SqlStorage(server.url)
    check_forks_while_threads_read(storage, summary(read_all(storage)))


def test_a_server_that_is_away_is_waited_for_then_raised(server, proxy, short_pauses):
    put_samples(server, images(9))
    url = server.through(proxy.port, password="geheim" if server.name == "postgresql" else "")
    storage = SqlStorage(url)
    expected = summary(read_all(storage))
    proxy.refuses = True
    proxy.cut()
    with pytest.raises(OSError, match="after several attempts; the database has trouble") as error:
        read_all(storage)
    assert "geheim" not in str(error.value) and f":{proxy.port}/" in str(error.value)
    proxy.refuses, proxy.refuses_next = False, 2
    assert summary(read_all(storage)) == expected and not proxy.refuses_next


def test_a_lock_of_another_is_waited_for_then_raised(server, short_pauses):
    put_samples(server, images(9))
    storage = SqlStorage(server.url, timeout_s=0.3)
    assert not causes(read_all(storage))
    lock = {"postgresql": "LOCK TABLE samples IN ACCESS EXCLUSIVE MODE",
            "mariadb": "LOCK TABLES samples WRITE"}[server.name]  # fmt: skip
    with server.root.begin() as connection:
        connection.exec_driver_sql(lock)
        with pytest.raises(OSError, match="after several attempts"):
            read_all(storage)
    assert not causes(read_all(storage))


ENDLESS = {
    "postgresql": "with recursive n(k) as (select 1 union all select k + 0 from n) "
    "select k from n where k = 2",
    "mariadb": "select a.seq as k from seq_1_to_1000000 a, seq_1_to_1000000 b where rand() < 0",
}


def test_a_query_that_never_ends_is_stopped(server, monkeypatch):
    monkeypatch.setattr(sql_server, "time", SimpleNamespace(sleep=pytest.fail))  # tried once
    put_samples(server, images(2))
    with pytest.raises(ValueError, match=r"computes for longer than 0\.3 s; .*raise dataset\.st"):
        len(SqlStorage(server.url, query=ENDLESS[server.name], key_column="k", timeout_s=0.3))


def test_nothing_is_written(server):
    put_samples(server, images(2))
    writes = {
        "postgresql": "with gone as (delete from samples returning id) select id from gone",
        "mariadb": "delete from samples returning id",
    }
    for query in (writes[server.name], "select 1 as id; delete from samples",
                  "select 1 id) a; commit; begin read write; delete from samples; commit; "
                  "select * from (select 1 id",
                  "select 1 id) a; delete from samples; select * from (select 1 id"):  # fmt: skip
        with pytest.raises(ValueError, match=f"^sql {server.name}"):
            len(SqlStorage(server.url, query=query, key_column="id"))
    assert len(SqlStorage(server.url)) == 2


REFUSED = {
    "two_tables": (["CREATE TABLE samples (id INT)", "CREATE TABLE others (id INT)"], {},
                   "tables: 'others', 'samples'; name one: dataset.storage.table"),
    "no_schema": (["CREATE TABLE samples (id INT)"], {"table": "nowhere.samples"},
                  "no table 'nowhere.samples'"),
    "composite": (["CREATE TABLE samples (x INT, y INT, PRIMARY KEY (x, y))"], {},
                  r"its primary key has 2 columns\); name a column .* of x, y"),
    "float_key": (["CREATE TABLE samples (x REAL)", "INSERT INTO samples VALUES (1.5)"],
                  {"key_column": "x"}, r"record 0: the key is 1\.5"),
    "query": ([], {"query": "nonsense", "key_column": "x"}, "syntax"),
    "no_column": (["CREATE TABLE samples (id INT)"], {"query": "select y from samples"}, "y"),

}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_be_is_one_line(server, case):
    statements, options, message = REFUSED[case]
    server.put(*statements)
    with pytest.raises(ValueError, match=message) as error:
        len(SqlStorage(server.url, **options))
    assert "\n" not in str(error.value)
    assert str(error.value).startswith(f"sql {server.name}+")


def test_addresses_that_are_wrong(server, monkeypatch):
    import sqlalchemy as sql

    monkeypatch.setattr(sql_server, "time", SimpleNamespace(sleep=pytest.fail))  # tried once
    url = sql.make_url(server.url)
    wrong = [url.set(port=1), url.set(host="host.invalid"), url.set(database="nowhere"),
             url.set(username="nobody_here", password="geheim")]  # fmt: skip
    for each in wrong:
        with pytest.raises(ValueError, match=f"^sql {server.name}") as error:
            len(SqlStorage(each.render_as_string(hide_password=False), table="samples"))
        assert "\n" not in str(error.value) and "geheim" not in str(error.value)


def test_a_table_that_is_dropped_meanwhile_stops_the_run(server):
    put_samples(server, images(5))
    storage = SqlStorage(server.url)
    assert len(read_all(storage)) == 5
    server.put("DROP TABLE samples")
    with pytest.raises(
        ExplainedError, match=r"the database says: .*samples.* is not what it was when"
    ):
        read_all(storage)


def test_what_a_query_holds_is_what_the_server_gets(server):
    put_samples(server, images(8))
    server.put(r"INSERT INTO samples VALUES (90, '5:30\d', 'cat', 1, NULL)")
    match = "~" if server.name == "postgresql" else "REGEXP"
    digits = r"\d" if server.name == "postgresql" else r"\\d"  # a text's backslash is one of two
    query = f"SELECT * FROM samples WHERE name {match} '^[0-9]:[0-9]0' OR name {match} '/{digits}'"
    assert len(SqlStorage(server.url, query=query, key_column="id")) == 9
