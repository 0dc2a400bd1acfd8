"""Databases by URL: SQLite files, passwords, and errors before a server is reached."""

from __future__ import annotations

import os
import sys

import pytest

from penstock.datasets.records.splits import StorageRecipe, open_split
from penstock.datasets.storages.sql import SqlStorage
from tests.datasets.storages.sqlite_tables import put, put_samples
from tests.datasets.storages.tables import images


def test_a_relative_path_starts_at_the_working_directory(tmp_path, monkeypatch):
    path = put_samples(tmp_path / "t.db", images(3))
    monkeypatch.chdir(tmp_path)
    assert str(SqlStorage("sqlite:///t.db", table="samples")) == f"sql sqlite:///{path} samples"


def test_parts_are_tables_or_views(tmp_path):
    path = put_samples(tmp_path / "t.db", images(9))
    put(tmp_path / "t.db", "CREATE TABLE val AS SELECT * FROM samples WHERE label = 'dog'")
    recipe = StorageRecipe(
        SqlStorage,
        {"url": f"sqlite:///{path}", "table": "samples"},
        val_path="val",
        test_path="val",
    )
    (tmp_path / "samples").mkdir()  # a folder, not a data set
    parts = {s: open_split(recipe, split=s, val_fraction=0.5) for s in ("train", "val", "test")}
    assert {name: len(part) for name, part in parts.items()} == {"train": 9, "val": 3, "test": 3}
    assert parts["val"].index.column("label").tolist() == [1, 1, 1], "ids are those of training"


REFUSED = {
    "sqlite_memory": ("sqlite://", {}, r"or sqlite:////folder/file.db"),
    "no_url": ("photos", {}, "not the URL of a database .*expected postgresql://"),
    "unset": ("env:NO_SUCH_VARIABLE", {}, "'NO_SUCH_VARIABLE' is not set; type export NO_SUCH_V"),
    "unknown": ("nonsense://me:geheim@host/db", {}, "expected postgresql://"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_urls_that_are_refused_without_a_server(case):
    url, options, message = REFUSED[case]
    with pytest.raises(ValueError, match=message) as error:
        SqlStorage(url, **options)
    assert "\n" not in str(error.value) and "eim" not in str(error.value)


@pytest.mark.parametrize(
    ("url", "module", "typed"),
    [
        ("postgresql://host/db", "sqlalchemy", "pip install 'sqlalchemy>=2.0'"),
        ("postgres://host/db", "psycopg", r"pip install 'psycopg\[binary\]'"),
        ("mysql://host/db", "pymysql", "pip install 'pymysql'"),
    ],
)
def test_a_missing_package_is_named(url, module, typed, monkeypatch):
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(ValueError, match=typed):
        len(SqlStorage(url, table="a"))


def test_public_attributes_have_no_password(monkeypatch):
    monkeypatch.setenv("DATABASE_URL", "postgresql://me:geheim@host/db")
    for url in ("env:DATABASE_URL", os.environ["DATABASE_URL"]):
        storage = SqlStorage(url, table="a")
        assert str(storage) == "sql postgresql+psycopg://me:***@host/db a"
        assert "geheim" not in repr({k: v for k, v in vars(storage).items() if k[0] != "_"})
