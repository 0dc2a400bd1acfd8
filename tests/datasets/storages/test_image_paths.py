"""Parquet and Arrow with columns of paths, read as CSV reads them, from a disk or behind URLs."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.feather
import pyarrow.parquet
import pytest

from penstock.core.sample import BadRecord
from penstock.datasets.records.splits import StorageRecipe
from penstock.datasets.storages.arrow import ArrowStorage
from penstock.datasets.storages.parquet import ParquetStorage
from tests.contracts.storage import check_storage, read_all, summary
from tests.object_store import BUCKET, object_store

NAMES = [f"i/{n}.jpg" for n in range(12)]
WRITE = {
    ".parquet": (lambda t, p: pa.parquet.write_table(t, p, row_group_size=5), ParquetStorage),
    ".arrow": (lambda t, p: pa.feather.write_feather(t, p, chunksize=5), ArrowStorage),
}


def put(folder, ending, names=NAMES, **columns):
    """Write a table, and the images of `NAMES` in the folder ``photos`` beside it."""
    (folder / "photos/i").mkdir(parents=True, exist_ok=True)
    for name in NAMES:
        (folder / "photos" / name).write_bytes(name.encode())
    labels = [("ash", "yew")[n % 2] for n in range(len(names))]
    table = pa.table({"image": names, "label": labels, "size": range(len(names))} | columns)
    WRITE[ending][0](table, str(folder / f"photos/t{ending}"))
    return str(folder / f"photos/t{ending}")


def records():
    return [
        (name, {"image": name.encode(), "size": n, "label": n % 2}) for n, name in enumerate(NAMES)
    ]


@pytest.mark.parametrize("ending", WRITE)
def test_contract(tmp_path, ending):
    path, copy = put(tmp_path / "a", ending), put(tmp_path / "b", ending)
    make = WRITE[ending][1]
    check_storage(lambda: make(path), records(), make_copy=lambda: make(copy))
    assert make(path).index.class_names == ("ash", "yew")


@pytest.mark.parametrize("ending", WRITE)
def test_an_image_that_is_not_there_is_a_bad_record(tmp_path, ending):
    path = put(tmp_path, ending, [NAMES[0], None, "i/gone.jpg", "../t"], key=["a", "b", "c", "d"])
    good, none, gone, outside = WRITE[ending][1](path).read(np.arange(4))
    assert good.fields["image"] == NAMES[0].encode()
    assert none.cause.startswith("its row lacks an image")
    assert "No such file" in gone.cause
    assert "leads out of its folder" in outside.cause


@pytest.mark.parametrize("ending", WRITE)
def test_behind_a_url(tmp_path, ending, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    put(tmp_path, ending)
    with object_store(monkeypatch.setenv) as store:
        store.latency_s = 0.05
        url = store.put(tmp_path / "photos", "photos")
        given = {} if ending == ".parquet" else {"root": f"s3://{BUCKET}/photos"}
        path = {"path": f"{url}/t{ending}"}
        storage = StorageRecipe(make=WRITE[ending][1], arguments=path | given).open()
        assert summary(read_all(storage)) == [(n, *r) for n, r in enumerate(records())]
        del store.files[f"photos/{NAMES[3]}"]
        bad = storage.read(np.array([3]))[0]
        assert isinstance(bad, BadRecord) and "not there" in bad.cause
