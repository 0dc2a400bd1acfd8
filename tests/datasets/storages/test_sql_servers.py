"""PostgreSQL and MariaDB: the contract, types, and servers that fail."""

from __future__ import annotations

import decimal
import math
import uuid

import numpy as np
import pytest

from penstock.core.sample import BadRecord, Record
from penstock.datasets.storages.sql import SqlStorage
from penstock.datasets.storages.sql import server as sql_server
from tests.contracts.storage import check_storage, read_all, summary
from tests.datasets.storages.checks import refusal
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
    running_server.put("DROP TABLE IF EXISTS samples", "DROP TABLE IF EXISTS others")
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


QUERY = "select * from samples where age >= 0 and name like '%.jpg' and ':x' <> '%s' -- all"


@pytest.mark.parametrize("options", [{"query": QUERY}, {"table": "samples"}])
def test_contract_by_other_keys(server, options):
    encoded = images(40)
    put_samples(server, encoded)
    wanted = dict(sample_records(encoded, by_name=True))
    order = [r.key for r in read_all(SqlStorage(server.url, key_column="name", **options))]
    check_storage(
        lambda: SqlStorage(server.url, key_column="name", **options),
        [(key, wanted.pop(key)) for key in order],
        processes=(),
    )
    assert not wanted


def test_types_and_missing_values(server):
    server.put(
        "CREATE TABLE samples (id INT PRIMARY KEY, n INT, de DECIMAL(6,2), b BLOB, d DATE, "
        "ts TIMESTAMP NULL, f BOOLEAN)",
        rows=[
            (1, 3, decimal.Decimal("2.25"), b"b", "1970-01-03", "1970-01-01 00:00:02", True),
            (2, *[None] * 6),
        ],
    )
    first, second = (record.fields for record in read_all(SqlStorage(server.url)))
    assert first == {"n": 3.0, "de": 2.25, "b": b"b", "d": 2, "ts": 2_000_000, "f": 1}
    assert second.pop("b") is None and all(map(math.isnan, second.values()))
    few = SqlStorage(server.url, columns=["d"]).read(np.array([0]))
    assert few == [Record(0, "1", {"d": 2})]


def test_lists_and_types_of_postgresql(server):
    if server.name != "postgresql":
        pytest.skip("has none")
    key = uuid.UUID(int=7)
    server.put("CREATE TYPE mood AS ENUM ('sad', 'ok')", 'CREATE SCHEMA "Other s"',
               'CREATE TABLE "Other s"."Rows" ("The key" UUID PRIMARY KEY, l FLOAT[], w TEXT[], '
               "m mood, label BOOLEAN, ip INET DEFAULT '1.2.3.4')",
               'INSERT INTO "Other s"."Rows" VALUES '
               f"('{key}', '{{1,2}}', '{{a,b}}', 'ok', true)")  # fmt: skip
    given = {"url": server.url, "table": "Other s.Rows"}
    [record] = read_all(SqlStorage(**given, columns=["l", "w", "m"]))
    assert record.key == str(key) and record.fields.pop("l").tolist() == [1.0, 2.0]
    assert record.fields == {"w": ["a", "b"], "m": "ok", "label": 1}
    refusal(SqlStorage(**given), "column 'ip' is of the type IPv4Address, which no field")


def test_rows_deleted_and_changed_after_the_scan(server):
    put_samples(server, images(12))
    given = {"columns": ["age", "name"]}
    storage = SqlStorage(server.url, **given)
    good = {record.key: record.fields for record in read_all(storage)}
    server.put("DELETE FROM samples WHERE id = -9",
               "UPDATE samples SET image = NULL WHERE id = 3",
               "UPDATE samples SET age = NULL WHERE id = 6",
               "UPDATE samples SET name = 'other', label = 'new' WHERE id = 9")  # fmt: skip
    records = read_all(storage)
    bad = causes(records)
    assert sorted(bad) == ["-9", "3", "6"]
    assert bad["-9"] == "its row is gone"
    assert "lacks an image" in bad["3"] and bad["6"].startswith("column 'age' ")
    changed = next(record for record in records if record.key == "9")
    assert changed.fields == good["9"] | {"name": "other"}, "the index keeps its labels"
    server.put("DELETE FROM samples WHERE image IS NULL")
    again = SqlStorage(server.url, **given)
    assert len(again) == 10 and not causes(read_all(again))
    assert set(again.index.class_names) == {*CLASSES, "new"}, "each start lists the rows"


def test_an_unreachable_server_is_retried_then_raised(server, proxy, short_pauses):
    put_samples(server, images(9))
    url = server.through(proxy.port, password="geheim" if server.name == "postgresql" else "")
    storage = SqlStorage(url)
    expected = summary(read_all(storage))
    proxy.refuses = True
    proxy.cut()
    with pytest.raises(OSError, match="after several attempts; resume") as error:
        read_all(storage)
    assert "geheim" not in str(error.value) and f":{proxy.port}/" in str(error.value)
    proxy.refuses, proxy.refuses_next = False, 2
    assert summary(read_all(storage)) == expected and not proxy.refuses_next


ENDLESS = {
    "postgresql": "with recursive n(k) as (select 1 union all select k + 0 from n) "
    "select k from n where k = 2",
    "mariadb": "select a.seq as k from seq_1_to_1000000 a, seq_1_to_1000000 b where rand() < 0",
}


def test_an_endless_query_is_stopped(server, monkeypatch):
    monkeypatch.setattr(sql_server.time, "sleep", pytest.fail)  # tried once
    put_samples(server, images(2))
    given = {"query": ENDLESS[server.name], "key_column": "k", "timeout_s": 0.3}
    refusal(SqlStorage(server.url, **given), "raise dataset.storage.timeout_s")


def test_nothing_is_written(server):
    put_samples(server, images(2))
    writes = {
        "postgresql": "with gone as (delete from samples returning id) select id from gone",
        "mariadb": "delete from samples returning id",
    }
    for query in (writes[server.name], "select 1 as id; delete from samples",
                  "select 1 id) a; commit; begin read write; delete from samples; commit; "
                  "select * from (select 1 id"):  # fmt: skip
        refusal(SqlStorage(server.url, query=query, key_column="id"), f"^sql {server.name}")
    assert len(SqlStorage(server.url)) == 2


def test_wrong_addresses(server, monkeypatch):
    import sqlalchemy as sql

    monkeypatch.setattr(sql_server.time, "sleep", pytest.fail)  # tried once
    url = sql.make_url(server.url)
    wrong = [url.set(port=1), url.set(host="host.invalid"), url.set(database="nowhere"),
             url.set(username="nobody_here", password="geheim")]  # fmt: skip
    for each in wrong:
        storage = SqlStorage(each.render_as_string(hide_password=False), table="samples")
        assert "geheim" not in refusal(storage, f"^sql {server.name}")
