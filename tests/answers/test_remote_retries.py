"""A store that is away: reads of every kind are retried for dataset.retry_s seconds."""

import io
import json
import tarfile
import time

import numpy as np
import pytest
from PIL import Image

from penstock import build_loader, compose
from tests.object_store import BUCKET, object_store

pytest.importorskip("obstore")

AWAY_S = 1.0
COUNT = 6


@pytest.fixture
def store(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    with object_store(monkeypatch.setenv) as store:
        yield store


def image(number):
    Image.new("RGB", (8, 8), (9 * number, 0, 0)).save(png := io.BytesIO(), "png")
    return png.getvalue()


def image_files(store):
    store.files |= {f"set/{'ab'[n % 2]}/{n}.png": image(n) for n in range(COUNT)}
    return ["dataset=image_folder", "dataset/cache=none", f"dataset.storage.path=s3://{BUCKET}/set"]


def tar_stream(store):
    with tarfile.open(fileobj=(content := io.BytesIO()), mode="w") as archive:
        for number in range(COUNT):
            for ending, value in (("png", image(number)), ("cls", b"0")):
                member = tarfile.TarInfo(f"{number}.{ending}")
                member.size = len(value)
                archive.addfile(member, io.BytesIO(value))
    store.files["a.tar"] = content.getvalue()
    return ["dataset=stream", f"dataset.source.path=s3://{BUCKET}/a.tar"]


def copied_arrays(store):
    for name, values in (
        ("images", np.zeros((COUNT, 8, 8, 3), np.uint8)),
        ("labels", np.arange(COUNT) % 2),
    ):
        np.save(content := io.BytesIO(), values)
        store.files[f"set/{name}.npy"] = content.getvalue()
    store.files["set/classes.json"] = json.dumps(["a", "b"]).encode()
    return ["dataset=memmap", f"dataset.storage.path=s3://{BUCKET}/set"]


def rows_read(loader):
    return sum(int(batch["valid"].sum()) for batch in loader)


def opened(overrides, retry_s, engine="inline"):
    small = [f"loader={engine}", "loader.batch_size=4", "loader.drop_last=false"]
    retries = ["dataset.val_fraction=0", f"dataset.retry_s={retry_s}"]
    return build_loader(compose([*small, *overrides, *retries]))


def go_away(store, seconds):
    """Answer 503 for some time from the first request on."""
    began = []

    def fault(method, key):
        began.append(time.monotonic())
        return 503 if time.monotonic() - began[0] < seconds else None

    store.fault = fault


@pytest.mark.parametrize("put", [image_files, tar_stream, copied_arrays])
def test_a_store_that_is_away_when_the_data_is_opened(store, put):
    overrides = put(store)
    go_away(store, float("inf"))
    with pytest.raises(Exception, match=r"dataset\.retry_s=0"):
        rows_read(opened(overrides, 0))
    go_away(store, AWAY_S)
    assert rows_read(opened(overrides, 30)) == COUNT


@pytest.mark.parametrize(("put", "engine"), [(image_files, "processes"), (tar_stream, "inline")])
def test_a_store_that_is_away_while_it_is_read(store, put, engine):
    overrides = put(store)
    if engine == "processes":
        # A fork server may be older than the store's credentials.
        overrides += ["loader.num_workers=1"]
    with opened(overrides, 0, engine) as loader:
        go_away(store, float("inf"))
        with pytest.raises(Exception, match=r"dataset\.retry_s=0"):
            rows_read(loader)
    go_away(store, 0)
    with opened(overrides, 30, engine) as loader:
        go_away(store, AWAY_S)
        assert rows_read(loader) == COUNT


def test_the_time_is_a_minute_by_default(store):
    assert compose(image_files(store))["dataset"]["retry_s"] == 60
    assert compose(tar_stream(store))["dataset"]["retry_s"] == 60
