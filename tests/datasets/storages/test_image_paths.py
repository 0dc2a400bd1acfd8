"""Parquet and Arrow with columns of paths, read as CSV reads them, from a disk or behind URLs."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

from penstock.core.sample import BadRecord
from penstock.datasets.records.splits import StorageRecipe
from tests.contracts.storage import read_all, summary
from tests.datasets.storages.checks import check_with_copy
from tests.datasets.storages.tables import FORMS
from tests.object_store import BUCKET, object_store

NAMES = [f"i/{n}.jpg" for n in range(12)]


def put(folder, form, names=NAMES, **columns):
    """Write a table, and the images of `NAMES` in the folder ``photos`` beside it."""
    (folder / "photos/i").mkdir(parents=True, exist_ok=True)
    for name in NAMES:
        (folder / "photos" / name).write_bytes(name.encode())
    labels = [("ash", "yew")[n % 2] for n in range(len(names))]
    table = pa.table({"image": names, "label": labels, "size": range(len(names))} | columns)
    FORMS[form][0](table, folder / f"photos/t.{form}", 5)
    return str(folder / f"photos/t.{form}")


def records():
    return [
        (name, {"image": name.encode(), "size": n, "label": n % 2}) for n, name in enumerate(NAMES)
    ]


@pytest.mark.parametrize("form", FORMS)
def test_contract(tmp_path, form):
    path, make = put(tmp_path, form), FORMS[form][1]
    check_with_copy(make, path, records())
    assert make(path).index.class_names == ("ash", "yew")


@pytest.mark.parametrize("form", FORMS)
def test_an_image_that_is_not_there_is_a_bad_record(tmp_path, form):
    path = put(tmp_path, form, [NAMES[0], None, "i/gone.jpg", "../t"], key=["a", "b", "c", "d"])
    good, none, gone, outside = FORMS[form][1](path).read(np.arange(4))
    assert good.fields["image"] == NAMES[0].encode()
    assert none.cause.startswith("its row lacks an image")
    assert "No such file" in gone.cause
    assert "leads out of its folder" in outside.cause


@pytest.mark.parametrize("form", FORMS)
def test_behind_a_url(tmp_path, form, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    put(tmp_path, form)
    with object_store(monkeypatch.setenv) as store:
        store.latency_s = 0.05
        url = store.put(tmp_path / "photos", "photos")
        given = {} if form == "parquet" else {"root": f"s3://{BUCKET}/photos"}
        path = {"path": f"{url}/t.{form}"}
        storage = StorageRecipe(make=FORMS[form][1], arguments=path | given).open()
        assert summary(read_all(storage)) == [(n, *r) for n, r in enumerate(records())]
        del store.files[f"photos/{NAMES[3]}"]
        bad = storage.read(np.array([3]))[0]
        assert isinstance(bad, BadRecord) and "not there" in bad.cause
