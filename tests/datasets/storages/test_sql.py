"""Databases by URL: SQLite files, and what is said before there is a server."""

from __future__ import annotations

import os
import sys

import pytest

from penstock.datasets.records.splits import StorageRecipe, open_split
from penstock.datasets.storages.sql import SqlSource, SqlStorage
from penstock.pipeline.config.compose import compose
from penstock.pipeline.config.errors import ConfigError
from tests.contracts.source import check_source, loaded
from tests.contracts.storage import read_all, summary
from tests.datasets.storages.sqlite_tables import at, put, put_samples
from tests.datasets.storages.tables import images


def test_an_sqlite_file_is_found_from_where_one_works(tmp_path, monkeypatch):
    path = put_samples(tmp_path / "t.db", images(3))
    monkeypatch.chdir(tmp_path)
    assert SqlStorage("sqlite:///t.db").fingerprint() == at(path).fingerprint()
    monkeypatch.setenv("HOME", str(tmp_path))
    assert str(SqlStorage("sqlite:///~/t.db", table="samples")) == f"sql sqlite:///{path} samples"


def test_an_address_may_stand_in_the_environment(tmp_path, monkeypatch):
    path = put_samples(tmp_path / "t.db", images(3))
    monkeypatch.setenv("DATABASE_URL", f"sqlite:///{path}")
    assert len(SqlStorage("env:DATABASE_URL")) == 3


def test_a_stream_of_an_sqlite_file_gives_its_rows_in_order(tmp_path):
    encoded = images(20)
    path = put_samples(tmp_path / "t.db", encoded)
    source = SqlSource(f"sqlite:///{path}", shard_rows=8)
    assert source.shards(0) == [(0, 8), (8, 16), (16, 20)]
    assert [source.count(shard) for shard in source.shards(0)] == [8, 8, 4]
    assert source.class_names == ("cat", "dog", "ürm")
    records = [record for shard in source.shards(0) for record in loaded(source, shard)]
    check_source(
        lambda: SqlSource(f"sqlite:///{path}", shard_rows=8), [record.key for record in records]
    )
    assert summary(records) == summary(read_all(at(path)))
    assert source.fingerprint() != SqlSource(f"sqlite:///{path}", shard_rows=9).fingerprint()


def test_advice_for_a_stream_names_its_keys(tmp_path):
    path = put_samples(tmp_path / "t.db", images(2))
    put(tmp_path / "t.db", "CREATE TABLE others (id INT)")
    with pytest.raises(ValueError, match=r"name one: dataset\.source\.table$"):
        SqlSource(f"sqlite:///{path}")


def test_larger_records_are_bad_in_a_stream_too(tmp_path):
    path = put_samples(tmp_path / "t.db", [b"x" * 10, b"x" * 1000])
    recipe = StorageRecipe(SqlSource, {"url": f"sqlite:///{path}"}, max_record_bytes=500)
    good, bad = (recipe.open().load(item) for item in recipe.open().read((0, 2), 0))
    assert good.fields["image"] == b"x" * 10
    assert "has 1,000 bytes, more than dataset.max_record_bytes=500" in bad.cause


def test_parts_are_tables_or_views(tmp_path):
    path = put_samples(tmp_path / "t.db", images(9))
    put(tmp_path / "t.db", "CREATE TABLE val AS SELECT * FROM samples WHERE label = 'dog'")
    recipe = StorageRecipe(
        SqlStorage,
        {"url": f"sqlite:///{path}", "table": "samples"},
        val_path="val",
        test_path="val",
    )
    (tmp_path / "samples").mkdir()  # is no data set of this name
    parts = {s: open_split(recipe, split=s, val_fraction=0.5) for s in ("train", "val", "test")}
    assert {name: len(part) for name, part in parts.items()} == {"train": 9, "val": 3, "test": 3}
    assert parts["val"].index.column("label").tolist() == [1, 1, 1], "ids are those of training"
    recipe.arguments.update(table=None, query="select * from samples")
    with pytest.raises(ValueError, match="name tables or views here; name the one to train on"):
        open_split(recipe, split="train", val_fraction=0.5)


REFUSED = {
    "sqlite_memory": ("sqlite://", {}, r"expected sqlite:///file.db, or sqlite:////folder"),
    "sqlite_options": ("sqlite:///a.db?mode=ro", {}, r"expected sqlite:///file.db"),
    "no_url": ("photos", {}, "not the URL of a database .*expected one such as postgresql://"),
    "no_port": ("postgresql://me:geheim@host:x/db", {}, "not the URL of a database"),
    "masked": ("postgresql://me:***@host/db", {}, r"left out where it was written .* type the URL"),
    "unset": ("env:NO_SUCH_VARIABLE", {}, "'NO_SUCH_VARIABLE' is not set; type export NO_SUCH_V"),
    "both": ("postgresql://host/db", {"table": "a", "query": "b"}, "expected one of them"),
    "unknown": ("nonsense://me:geheim@host/db", {}, "nonsense is not read here; take postgresql:"),
    "other": ("postgresql+psycopg2://host/db", {}, r"postgresql\+psycopg2 is not read here; take"),
    "slash": ("postgresql://me:geh/eim@host/db", {}, "as %40 %3A %2F"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_can_be_said_without_a_server(case):
    url, options, message = REFUSED[case]
    with pytest.raises(ValueError, match=message) as error:
        len(SqlStorage(url, **options))
    assert "\n" not in str(error.value) and "eim" not in str(error.value)


@pytest.mark.parametrize(
    ("url", "module", "typed"),
    [
        ("postgresql://host/db", "sqlalchemy", "pip install 'sqlalchemy>=2.0'"),
        ("postgres://host/db", "psycopg", r"pip install 'psycopg\[binary\]'"),
        ("mysql://host/db", "pymysql", "pip install pymysql"),
    ],
)
def test_a_package_that_is_missing_is_named(url, module, typed, monkeypatch):
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(ValueError, match=typed):
        len(SqlStorage(url, table="a"))


def test_a_password_is_in_no_attribute_that_is_kept(monkeypatch):
    monkeypatch.setenv("DATABASE_URL", "postgresql://me:geheim@host/db")
    for url in ("env:DATABASE_URL", os.environ["DATABASE_URL"]):
        storage = SqlStorage(url, table="a")
        assert str(storage) == "sql postgresql+psycopg://me:***@host/db a"
        assert "geheim" not in repr({k: v for k, v in vars(storage).items() if k[0] != "_"})


def test_a_stream_has_no_parts():
    url = "dataset.source.url=sqlite:///a.db"
    with pytest.raises(ConfigError, match=r"dataset\.val_path: 'b' given, .*dataset.val_path=null"):
        compose(["dataset=stream", "dataset/source=sql", url, "dataset.val_path=b"])
    compose(["dataset=stream", "dataset/source=sql", url, "dataset.val_path=null"])


def test_the_example_config_composes():
    config = compose(["experiment=database"])
    assert config["dataset"]["storage"]["url"] == "env:DATABASE_URL"
