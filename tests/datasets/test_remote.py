"""Data behind URLs: the same records while a server fails now and then, or one clear error."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path

import numpy as np
import pytest

from penstock import build_loader, compose
from penstock.core.sample import BadRecord
from penstock.datasets.annotations.in_records import InRecords
from penstock.datasets.files import byte_streams, clients, remote
from penstock.datasets.files.clients import RemoteError
from penstock.datasets.records.splits import StorageRecipe, find_parts, open_split
from penstock.datasets.sources.jsonl import JsonlSource
from penstock.datasets.storages.csv import CsvStorage
from penstock.datasets.storages.image_folder import ImageFolder
from penstock.datasets.storages.lmdb import LmdbStorage, LmdbWriter
from penstock.datasets.storages.parquet import ParquetStorage, ParquetWriter
from penstock.datasets.storages.webdataset import WebDatasetStorage, WebDatasetWriter
from penstock.datasets.storages.zip import ZipStorage, ZipWriter
from penstock.datasets.writing import write_storage
from penstock.pipeline.commands.digest import batch_digest
from tests.contracts.storage import read_all, summary
from tests.laws.conftest import make_photos
from tests.object_store import BUCKET

FORMS = {
    "zip": (ZipStorage, ZipWriter),
    "webdataset": (WebDatasetStorage, WebDatasetWriter),
    "parquet": (ParquetStorage, ParquetWriter),
    "lmdb": (LmdbStorage, LmdbWriter),
}


@pytest.fixture(scope="module")
def photos(tmp_path_factory):
    root = tmp_path_factory.mktemp("photos")
    make_photos(root, {"ash": 5, "birch": 8, "yew": 3})
    return root


def written(form: str, photos: Path, folder: Path) -> Path:
    write_storage(FORMS[form][1](), folder / form, ImageFolder(str(photos / "train")))
    return folder / form


def opened(make, url):
    return StorageRecipe(make=make, arguments={"path": url}).open()


@pytest.mark.parametrize("form", FORMS)
def test_records_are_those_of_the_files(form, store, photos, tmp_path):
    local = written(form, photos, tmp_path)
    url = store.put(local, f"data/{form}")
    make = FORMS[form][0]
    here, there = make(str(local)), opened(make, url)
    assert there.fingerprint() == here.fingerprint()
    order = np.random.default_rng(1).permutation(len(here))
    assert summary(there.read(order)) == summary(here.read(order))


def test_a_csv_of_images_is_copied_once(store, photos, tmp_path):
    rows = ["image,label"]
    rows += [f"train/{p.parent.name}/{p.name},{p.parent.name}" for p in photos.glob("train/*/*")]
    (photos / "all.csv").write_text("\n".join(rows) + "\n")
    url = store.put(photos, "table")
    here, there = CsvStorage(str(photos / "all.csv")), CsvStorage(f"{url}/all.csv")
    assert summary(read_all(there)) == summary(read_all(here))
    before = len(store.requests)
    again = CsvStorage(f"{url}/all.csv")
    assert again.fingerprint() == there.fingerprint()
    methods = [method for method, _ in store.requests[before:]]
    assert methods == ["HEAD"], "the copy is kept"


def test_label_files_are_found_beside_the_images(store, photos):
    for path in (photos / "train").rglob("*.jpg"):
        name = f"set/Annotations/{path.parent.name}/{path.stem}.xml"
        store.files[name] = (
            b"<annotation><object><name>tree</name><bndbox><xmin>2</xmin><ymin>2"
            b"</ymin><xmax>9</xmax><ymax>9</ymax></bndbox></object></annotation>"
        )
    url = store.put(photos / "train", "set/images")  # beside the images, and with a capital letter
    given = [*SMALL, "loader=inline", "augment=none", "task=detection", "dataset.val_fraction=0.2",
             f"dataset.storage.path={url}", "dataset/annotations=voc"]  # fmt: skip
    assert len(digests(given)[0]) == 3


def test_patterns_braces_and_single_files(store, photos, tmp_path):
    source = ImageFolder(str(photos / "train"))
    write_storage(WebDatasetWriter(shard_records=4), tmp_path / "w", source)
    url = store.put(tmp_path / "w", "w")
    names = sorted(key[2:] for key in store.files if key.endswith(".tar"))
    assert len(names) == 4
    every = summary(read_all(WebDatasetStorage(url)))
    for pattern in (
        f"{url}/shard-00000{{0..3}}.tar",
        f"{url}/shard-00000{{3..0}}.tar",
        f"{url}/*.tar",
        [f"{url}/{name}" for name in names],
    ):
        assert summary(read_all(WebDatasetStorage(pattern))) == every
    assert len(WebDatasetStorage(f"{url}/{names[1]}")) == 4
    with pytest.raises(ValueError, match=rf"nothing there: {url}/\S+4.tar.*dataset.storage.path"):
        len(WebDatasetStorage(f"{url}/shard-00000{{0..4}}.tar"))
    twice = WebDatasetStorage([f"{url}/{names[0]}", f"{url}/*.tar"])
    assert summary(read_all(twice)) == every


def test_files_of_a_web_server_must_be_named(store, photos, tmp_path):
    store.put(written("zip", photos, tmp_path), "z")
    [name] = [key for key in store.files if key.endswith(".zip")]
    url = f"{store.url}/{BUCKET}/{name}"
    assert summary(read_all(ZipStorage(url))) == summary(
        read_all(ZipStorage(str(tmp_path / "zip")))
    )
    for other in (f"{store.url}/{BUCKET}/z", f"{store.url}/{BUCKET}/typo.zip"):
        with pytest.raises(RemoteError, match="a web server lists no folders; name its files"):
            len(ZipStorage(other))
    with pytest.raises(RemoteError, match=r"or images in a table: dataset=csv"):
        len(ImageFolder(f"{store.url}/{BUCKET}/i"))


def test_parts_are_found_as_in_a_folder(store, photos):
    url = store.put(photos, "photos")
    parts = find_parts(url)
    assert parts == {"train": f"{url}/train", "val": f"{url}/val"}
    recipe = StorageRecipe(make=ImageFolder, arguments={"path": url})
    there = open_split(recipe, split="val", val_fraction=0.2)
    assert summary(read_all(there)) == summary(read_all(ImageFolder(str(photos / "val"))))
    for split, count in (("train", 3), ("test", 2)):
        for n in range(count):
            store.files[f"hub/data/{split}-{n:05d}-of-{count:05d}.parquet"] = b""
    hub = f"s3://{BUCKET}/hub"
    shards = {split: f"{hub}/data/{split}-*-of-*.parquet" for split in ("train", "test")}
    assert find_parts(hub) == shards


def digests(given):
    with build_loader(compose(given), "train") as loader:
        return [batch_digest(batch) for batch in loader], loader.stats.times


SMALL = ["loader=threads", "augment=light", "augment.image_size=20", "loader.batch_size=4"]


def now_and_then(*faults):
    """Return faults that come in turn for the reads of each file."""
    place = {}

    def fault(method, key):
        if method != "GET":
            return None
        place[key] = place.get(key, len(place) - 1) + 1
        return faults[place[key] % len(faults)]

    return fault


@pytest.mark.parametrize("engine", ["inline", "threads", "processes"])
def test_batches_are_those_of_files_while_the_server_fails_now_and_then(engine, store, photos):
    url = store.put(photos, "photos")
    # A fork server, which another test may have started, has the environment that it began with.
    given = [*SMALL, f"loader={engine}", "loader.timeout_s=100"]
    expected, _ = digests([*SMALL, "loader=inline", f"dataset.storage.path={photos}"])
    store.fault = now_and_then(503, None, "cut", None, 429, None, "short", None, 500)
    found, times = digests([*given, f"dataset.storage.path={url}"])
    assert found == expected
    assert times.requests >= 16 and times.fetched_bytes >= 16 * 500
    store.fault = lambda method, key: 503 if key.endswith(".jpg") else None
    found, again = digests([*given, f"dataset.storage.path={url}"])
    assert found == expected and again.hits == 16 and again.requests == 0, "all of it was kept"


def test_a_missing_file_is_a_bad_record_and_a_refusal_is_an_error(store, photos):
    storage = ImageFolder(store.put(photos / "train", "train"))
    key = storage.index.keys(np.array([3]))[0]
    del store.files[f"train/{key}"]
    records = read_all(storage)
    assert [n for n, r in enumerate(records) if isinstance(r, BadRecord)] == [3]
    assert "not there" in records[3].cause
    store.fault = lambda method, key: 403
    with pytest.raises(RemoteError, match=r"s3://bucket/train/.*: access is denied, .*env"):
        read_all(storage)


@pytest.mark.parametrize("name", ["a#b", "a?b", "a%20b", "a%b"])
def test_a_folder_of_an_odd_name_is_read_and_no_other(name, store):
    store.files |= {f"x/{folder}/yew/1.jpg": folder.encode() for folder in ("a", "a b", name)}
    [record] = read_all(ImageFolder(f"s3://{BUCKET}/x/{name}"))
    assert record.fields["image"] == name.encode()


@pytest.mark.parametrize("heed", [None, "bare"])
def test_content_that_changes_while_it_is_read_is_an_error(store, photos, tmp_path, heed):
    store.fault = lambda method, key: heed
    url = store.put(written("zip", photos, tmp_path), "z")
    storage = ZipStorage(url)
    assert not any(isinstance(record, BadRecord) for record in read_all(storage))
    [name] = [key for key in store.files if key.endswith(".zip")]
    store.files[name] = store.files[name][:-1] + b"!"
    with pytest.raises(RemoteError, match="its content was changed since it was looked at"):
        read_all(storage)
    assert len(read_all(ZipStorage(url))) == 16, "the next run reads what is there now"


def test_a_stream_whose_file_becomes_shorter_is_an_error(store, monkeypatch):
    monkeypatch.setattr(byte_streams, "PIECE_BYTES", 1 << 18)
    line = b'{"x": "%b"}\n' % bytes(1 << 10).hex().encode()
    store.files["x.jsonl"] = line * 1000
    source = JsonlSource(f"s3://{BUCKET}/x.jsonl")
    items = source.read(source.shards(0)[0], 0)
    next(items)
    store.files["x.jsonl"] = line * 100
    with pytest.raises(RemoteError, match="its content was changed since it was looked at"):
        list(items)


def test_the_folders_of_a_bucket_share_its_connections(store):
    store.files |= {f"{n}/x.jpg": b"x" for n in range(40)}
    before = len(os.listdir("/proc/self/fd"))
    assert all(remote.read_url(f"s3://{BUCKET}/{n}/x.jpg") == b"x" for n in range(40))
    assert len(os.listdir("/proc/self/fd")) < before + 20


def test_an_endpoint_without_a_scheme_is_refused(store, monkeypatch):
    monkeypatch.setenv("AWS_ENDPOINT_URL", "localhost:9000")
    with pytest.raises(RemoteError, match="type export AWS_ENDPOINT_URL=http://localhost:9000"):
        len(ImageFolder(f"s3://{BUCKET}/train"))


def test_an_outage_is_one_warning(store, monkeypatch, caplog):
    monkeypatch.setattr(clients, "_RETRY_S", 0.01)
    monkeypatch.setattr(clients, "_retry_s", 0.75)
    monkeypatch.setattr(clients, "_QUIET_S", 0)
    store.fault = lambda method, key: 503
    for name in ("a.jpg", "b.jpg"):
        with pytest.raises(RemoteError, match="503"):
            remote.read_url(f"s3://{BUCKET}/{name}")
    assert caplog.text.count("retrying for 0.75 s") == 1


def test_a_server_without_ranges_is_an_error_at_once(store):
    store.files["x.jpg"] = b"content"
    store.fault = lambda method, key: "whole"
    with pytest.raises(RemoteError, match="sends whole files only"):
        remote.read_url(f"{store.url}/{BUCKET}/x.jpg")


@pytest.mark.parametrize(
    ("url", "fault", "said"),
    [
        (f"s3://{BUCKET}/nothing", None, "nothing there|no image found"),
        ("s3://other/train", None, "there is no such bucket"),
        (f"s3://{BUCKET}/train", 301, "in another region; set AWS_REGION"),
        (f"s3://{BUCKET}/train", 403, "access is denied"),
        (f"s3://{BUCKET}/train", 503, "after several tries"),
        (f"s3://{BUCKET}/odd", None, 'odd/x//1.jpg".*; rename the file'),
        (f"s3://me:word@{BUCKET}/train", None, "carries a password"),
        (f"https://{BUCKET}/train.zip?token=word", None, "carries a password or a query"),
        ("sss://bucket/train", None, "sss.*expected s3, gs"),
        ("s3://", None, "s3:.*"),
    ],
)
@pytest.mark.parametrize("make", [ImageFolder, WebDatasetStorage])
def test_one_line_says_what_is_wrong(make, url, fault, said, store):
    store.fault = lambda method, key: fault
    store.files["odd/x//1.jpg"] = b""
    with pytest.raises((ValueError, RemoteError)) as raised:
        len(make(url))
    text = str(raised.value)
    assert re.search(said, text) and "\n" not in text and len(text) < 500
    assert "word@" not in text and "token=" not in text and "secret-of" not in text


def test_names_that_leave_the_folder_are_bad_records(store):
    for name in ("../secret.jpg", "/secret.jpg", "s3://other/secret.jpg", "a/../../secret.jpg"):
        store.files["table.csv"] = f"image,label\n{name},a\n".encode()
        [bad] = CsvStorage(f"s3://{BUCKET}/table.csv").read(np.arange(1))
        assert "leads out of its folder" in bad.cause


@pytest.mark.parametrize("fault", [None, "cut"])
def test_a_remote_stream_has_the_batches_of_local_files(store, photos, tmp_path, fault):
    for part in ("train", "val"):
        source = ImageFolder(str(photos / part))
        write_storage(WebDatasetWriter(shard_records=4), tmp_path / "w" / part, source)
    given = [*SMALL, "dataset=stream", "sampler=sequential", "dataset.source.classes=3"]
    expected, _ = digests([*given, f"dataset.source.path={tmp_path / 'w'}"])
    url = store.put(tmp_path / "w", "w")
    store.fault = now_and_then(None, fault)
    found, _ = digests([*given, f"dataset.source.path={url}"])
    assert found == expected and len(found) == 4
    assert not list((tmp_path / "cache").rglob("copy-*")), "it is read as it comes"


def test_a_stalled_server_is_an_error_before_the_loader_times_out(store, monkeypatch):
    assert clients.RETRY_S + clients._RETRY_S + clients._ANSWER_S < 120, "loader.timeout_s"
    monkeypatch.setattr(clients, "_ANSWER_S", 0.2)
    monkeypatch.setattr(clients, "_RETRY_S", 0.2)
    monkeypatch.setattr(clients, "_retry_s", 0.3)
    store.files["x.jpg"] = b"content"
    store.fault = lambda method, key: "stall"
    with pytest.raises(RemoteError, match="after several tries"):
        remote.read_url(f"s3://{BUCKET}/x.jpg")


def test_credentials_are_in_no_config_and_no_log(store, photos, tmp_path, caplog):
    url = store.put(photos, "photos")
    config = compose([*SMALL, f"dataset.storage.path={url}"])
    assert "secret-of-the-user" not in json.dumps(config, default=str) + caplog.text


def test_named_files_need_no_permission_to_list(store, photos, tmp_path, caplog):
    url = store.put(written("webdataset", photos, tmp_path), "w")
    name = next(key for key in store.files if key.endswith(".tar"))
    for key in [key for key in store.files if not key.endswith(".tar")]:
        del store.files[key]
    store.fault = lambda method, key: None if key in store.files else 403
    recipe = StorageRecipe(WebDatasetStorage, {"path": f"s3://{BUCKET}/{name}"})
    train, val = (open_split(recipe, split=split, val_fraction=0.2) for split in ("train", "val"))
    assert len(train) + len(val) == 16
    named = InRecords(classes={"mask": ["sky", "road"]})  # which looks for what pack left, too
    named_train = open_split(recipe, split="train", val_fraction=0, annotations=named)
    assert named_train.index.field_classes == {"mask": ("sky", "road")}
    with pytest.raises(RemoteError, match=r"gone\.tar: access is denied, or nothing is there"):
        len(opened(WebDatasetStorage, f"{url}/gone.tar"))
