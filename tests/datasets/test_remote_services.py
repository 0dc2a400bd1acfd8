"""Data on servers that others wrote: S3, Azure and Google, and what boto3 knows of S3."""

from __future__ import annotations

import numpy as np
import pytest

from penstock import build_loader, compose
from penstock.core.sample import BadRecord
from penstock.datasets.files import clients, listings
from penstock.datasets.files.access import RangeFile
from penstock.datasets.files.clients import RemoteError
from penstock.datasets.storages.image_folder import ImageFolder
from penstock.datasets.storages.webdataset import WebDatasetStorage, WebDatasetWriter
from penstock.datasets.storages.zip import ZipStorage
from penstock.datasets.writing import write_storage
from penstock.pipeline.commands import pack
from penstock.pipeline.config.compose import configure
from penstock.pipeline.loader.digest import batch_digest
from tests.contracts.storage import read_all, summary
from tests.datasets.object_services import BUCKET, SERVICES, running
from tests.laws.conftest import make_photos
from tests.moto_bucket import moto_bucket

pytestmark = pytest.mark.service


@pytest.fixture
def bucket(monkeypatch, tmp_path):
    with moto_bucket(monkeypatch, tmp_path) as bucket:
        yield bucket


def test_folders_shards_and_profiles_of_boto3(bucket, tmp_path):
    make_photos(tmp_path / "photos", {"ash": 700, "birch": 500})  # listed in two answers
    folder = ImageFolder(str(tmp_path / "photos" / "train"))
    write_storage(WebDatasetWriter(shard_records=500), tmp_path / "shards", folder)
    for path in [*tmp_path.rglob("*.jpg"), *tmp_path.rglob("*.tar")]:
        bucket.upload_file(str(path), path.relative_to(tmp_path).as_posix())
    there = ImageFolder("s3://photographs/photos/train")
    assert there.fingerprint() == folder.fingerprint()
    some = np.array([1100, 3, 700, 4, 5])
    assert summary(there.read(some)) == summary(folder.read(some))
    here = WebDatasetStorage(str(tmp_path / "shards"))
    shards = WebDatasetStorage("s3://photographs/shards/shard-00000{0..2}.tar")
    assert summary(read_all(shards)) == summary(read_all(here))
    with pytest.raises(RemoteError, match="there is no such bucket"):
        len(ImageFolder("s3://photograph/photos"))


@pytest.fixture(scope="module", params=SERVICES)
def server(request, tmp_path_factory):
    with running(request.param, tmp_path_factory.mktemp("server")) as make_bucket:
        yield make_bucket()


@pytest.fixture
def service(server, monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    for name, value in server.variables.items():
        monkeypatch.setenv(name, value)
    clients._open_client.cache_clear()
    yield server
    clients._open_client.cache_clear()


def put(service, folder, prefix):
    for path in sorted(folder.rglob("*")):
        if path.is_file():
            service.put(f"{prefix}/{path.relative_to(folder).as_posix()}", path)
    return f"{service.url}/{prefix}"


def epoch(form, path, *more):
    given = ["augment=light", "augment.image_size=20", "loader.batch_size=8", *more]
    given += [f"dataset={form}", f"dataset.storage.path={path}"]
    with build_loader(compose(given), "train") as loader:
        return [batch_digest(batch) for batch in loader]


def test_an_epoch_is_that_of_the_files(service, tmp_path):
    make_photos(tmp_path / "photos", {"ash": 12, "birch": 9})
    folder = ImageFolder(str(tmp_path / "photos" / "train"))
    write_storage(WebDatasetWriter(shard_records=5), tmp_path / "shards", folder)
    photos = put(service, tmp_path / "photos", "epoch/photos")
    shards = put(service, tmp_path / "shards", "epoch/shards")
    local = epoch("image_folder", tmp_path / "photos")
    assert epoch("image_folder", photos, "loader=threads") == local
    expected = epoch("webdataset", tmp_path / "shards")
    for path in (shards, f"{shards}/shard-{{000000..000004}}.tar", f"{shards}/*.tar"):
        assert epoch("webdataset", path, "loader=threads") == expected
    here, there = WebDatasetStorage(str(tmp_path / "shards")), WebDatasetStorage(shards)
    assert there.fingerprint() == here.fingerprint() and there.index.class_names == ("ash", "birch")


def test_files_are_listed_and_read_by_place(service, tmp_path):
    content = np.random.default_rng(1).bytes(20 << 20)  # in three pieces
    (tmp_path / "files" / "a b").mkdir(parents=True)
    (tmp_path / "files" / "large.bin").write_bytes(content)
    (tmp_path / "files" / "a b" / "\u00fc+&.txt").write_bytes(b"small")
    url = put(service, tmp_path / "files", "listed")
    listed = listings.list_files(url)
    assert [(each.name, each.size_bytes) for each in listed] == [
        ("a b/\u00fc+&.txt", 5), ("large.bin", len(content)),
    ]  # fmt: skip
    large = RangeFile(f"{url}/large.bin", mark=listed[1][1:])
    assert large.read(1_000_000, 17 << 20) == content[1_000_000 : 1_000_000 + (17 << 20)]
    assert large.read_upto(len(content) - 3, 10) == content[-3:]
    assert large.read_upto(len(content) + 3, 10) == b""
    assert listings.look_at(f"{url}/large.bin").file == listings.find_file(f"{url}/large.bin")
    assert listings.find_file(f"{url}/typo.bin") is None
    service.put("listed/large.bin", tmp_path / "files" / "a b" / "\u00fc+&.txt")
    with pytest.raises(RemoteError, match="its content was changed since it was looked at"):
        large.read(0, 2)


def test_what_is_gone_is_a_bad_record_and_a_wrong_name_is_a_line(service, tmp_path):
    make_photos(tmp_path / "photos", {"ash": 3})
    url = put(service, tmp_path / "photos" / "train", "gone")
    named = ImageFolder(url, pattern="ash/{:02d}.jpg", count=100)
    first, last = named.read(np.array([0, 99]))
    assert not isinstance(first, BadRecord) and isinstance(last, BadRecord)
    with pytest.raises(ValueError, match=r"nothing there: .*expected a file, a folder"):
        len(WebDatasetStorage(f"{service.url}/typo"))
    with pytest.raises(RemoteError, match=f"{BUCKET}x: "):
        len(ImageFolder(f"{service.url}x"))


def test_it_is_packed_to(service, tmp_path, capsys):
    if not service.packs:
        pytest.skip("this server takes no files as obstore sends them")
    make_photos(tmp_path / "photos", {"ash": 12, "birch": 9})
    url = f"{service.url}/packed"
    given = [f"dataset.storage.path={tmp_path / 'photos'}", f"pack.path={url}", "pack.to=zip"]
    assert pack.run(configure([*given, "pack.num_workers=0"], command="pack")) == 0
    assert pack.run(configure([f"pack.check={url}"], command="pack")) == 0
    packed = {r.key: r.fields["image"] for r in read_all(ZipStorage(f"{url}/val"))}
    val = ImageFolder(str(tmp_path / "photos" / "val"))
    assert packed == {record.key: record.fields["image"] for record in read_all(val)}


def test_refused_credentials_are_a_line(service, monkeypatch):
    if not service.refused:
        pytest.skip("this server asks for no credentials")
    for name, value in service.refused.items():
        monkeypatch.setenv(name, value)
    for make in (ImageFolder, WebDatasetStorage):
        with pytest.raises(
            RemoteError, match=r"access is denied, .*AZURE_SKIP_SIGNATURE"
        ) as raised:
            len(make(f"{service.url}/photos"))
        assert not any(value in str(raised.value) for value in service.refused.values())
