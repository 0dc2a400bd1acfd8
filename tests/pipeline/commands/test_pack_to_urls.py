"""Packing to an object store: whole there, or not to be read, whatever happens on the way."""

from __future__ import annotations

import os
import shlex

import pytest

from penstock import build_loader, compose
from penstock.datasets.files.clients import RemoteError
from penstock.pipeline.commands import pack
from penstock.pipeline.config.compose import configure
from tests.laws.conftest import make_photos
from tests.object_store import BUCKET

URL = f"s3://{BUCKET}/sets/packed"


@pytest.fixture
def photos(tmp_path):
    make_photos(tmp_path / "photos", {"ash": 12, "birch": 9})
    return tmp_path / "photos"


def packed(photos, *typed, url=URL):
    given = [f"dataset.storage.path={photos}", f"pack.path={url}", "pack.num_workers=0"]
    return pack.run(configure([*given, *typed], command="pack"))


def rows(typed):
    small = ["loader=inline", "loader.batch_size=4", "loader.drop_last=false", "augment=none"]
    with build_loader(compose([*typed, *small])) as loader:
        return [
            (key, image.tobytes())
            for batch in loader
            for key, image in zip(batch["key"], batch["image"].numpy(), strict=True)
        ]


@pytest.mark.parametrize("form", ["lmdb", "webdataset", "zip"])
def test_what_was_packed_is_read_from_there(form, store, photos, capsys, tmp_path):
    assert packed(photos, f"pack.to={form}") == 0
    said = capsys.readouterr().out
    assert f"copied to {URL}" in said and not list((tmp_path / "cache").rglob("copied.json"))
    typed = shlex.split(said.splitlines()[-1].partition("penstock train ")[2])
    assert f"dataset.storage.path={URL}" in typed
    assert not any(name.endswith(".packing") for name in store.files)
    resized = ["augment.image_size=32"]
    assert sorted(rows([*typed, *resized])) == sorted(
        rows([f"dataset.storage.path={photos}", *resized])
    )
    assert pack.run(configure([f"pack.check={URL}"], command="pack")) == 0
    damaged = next(name for name in store.files if name.endswith((".mdb", ".tar", ".zip")))
    content = bytearray(store.files[damaged])
    content[len(content) // 2] ^= 64
    store.files[damaged] = bytes(content)
    assert pack.run(configure([f"pack.check={URL}"], command="pack")) == 1


def test_what_breaks_off_is_not_read_and_goes_on(store, photos, capsys):
    put = []

    def refuse(method, key):
        if method == "PUT" and not key.endswith(".packing"):
            put.append(key)
            return 403 if len(put) > 3 else None
        return None

    store.fault = refuse
    with pytest.raises(RemoteError, match="access is denied"):
        packed(photos, "pack.to=image_folder")
    store.fault = lambda method, key: None
    assert "sets/packed/train/.packing" in store.files
    for path in (URL, f"{URL}/train"):
        with pytest.raises(RemoteError, match="pack has not finished writing it"):
            rows([f"dataset.storage.path={path}"])
    with pytest.raises(ValueError, match="was begun with other data or settings"):
        packed(photos, "pack.to=zip")
    before, _ = len(store.requests), capsys.readouterr()
    assert packed(photos, "pack.to=image_folder") == 0
    assert "train:" not in capsys.readouterr().out, "nothing is packed again"
    again = [key for method, key in store.requests[before:] if method == "PUT"]
    assert len(again) == len({*again}) <= len(store.files) + 3
    assert not any(name.endswith(".packing") for name in store.files)
    assert len(rows([f"dataset.storage.path={URL}"])) == len(
        rows([f"dataset.storage.path={photos}"])
    )


def test_passing_trouble_and_large_files(store, photos, capsys):
    big = photos / "train" / "ash" / "big.jpg"
    good = next((photos / "train" / "ash").glob("*.jpg")).read_bytes()
    big.write_bytes(good + os.urandom(12 << 20))  # what follows a JPEG's end is passed over
    troubled = set()

    def now_and_then(method, key):
        if method != "GET" and (method, key) not in troubled:
            troubled.add((method, key))
            return 503 if len(troubled) % 2 else "cut"
        return None

    store.fault = now_and_then
    assert packed(photos, "pack.to=zip") == 0
    assert any(method == "POST" for method, _ in store.requests), "in parts"
    assert len(rows([f"dataset.storage.path={URL}", "dataset=zip"])) > 12


def test_places_that_cannot_be_taken_are_refused_before_anything_is_done(store, photos, capsys):
    store.files["sets/other/mine.txt"] = b"mine"
    for typed, url, said in (
        ([], f"s3://{BUCKET}/sets/other", r"holds mine\.txt already"),
        ([], "https://example.org/x", "takes no files"),
        (["pack.overwrite=true"], URL, "nothing is removed"),
        ([], "s3://no-such-bucket/x", "there is no such bucket"),
    ):
        with pytest.raises((ValueError, RemoteError), match=said):
            packed(photos, *typed, url=url)
    assert set(store.files) == {"sets/other/mine.txt"}
    assert "records" not in capsys.readouterr().out
    source = store.put(photos, "source")
    with pytest.raises(ValueError, match="lie in each other"):
        packed(source, url=f"{source}/packed")
