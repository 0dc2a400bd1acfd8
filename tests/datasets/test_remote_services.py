"""Data on an S3 server that others wrote, moto's, with the credentials of a profile of boto3."""

from __future__ import annotations

import numpy as np
import pytest

from penstock.core.sample import BadRecord
from penstock.datasets.files import remote
from penstock.datasets.files.access import RangeFile
from penstock.datasets.files.clients import RemoteError
from penstock.datasets.storages.image_folder import ImageFiles, ImageFolder
from penstock.datasets.storages.webdataset import WebDatasetStorage, WebDatasetWriter
from penstock.datasets.writing import write_storage
from tests.contracts.storage import read_all, summary
from tests.laws.conftest import make_photos
from tests.moto_bucket import moto_bucket

pytestmark = pytest.mark.service
URL = "s3://photographs"


@pytest.fixture
def bucket(monkeypatch, tmp_path):
    with moto_bucket(monkeypatch, tmp_path) as bucket:
        yield bucket


def test_folders_and_shards(bucket, tmp_path):
    make_photos(tmp_path / "photos", {"ash": 700, "birch": 500})
    folder = ImageFolder(str(tmp_path / "photos" / "train"))
    write_storage(WebDatasetWriter(shard_records=500), tmp_path / "shards", folder)
    for path in [*tmp_path.rglob("*.jpg"), *tmp_path.rglob("*.tar")]:
        bucket.upload_file(str(path), path.relative_to(tmp_path).as_posix())
    there = ImageFolder(f"{URL}/photos/train")
    assert there.fingerprint() == folder.fingerprint()
    some = np.array([1100, 3, 700, 4, 5])
    assert summary(there.read(some)) == summary(folder.read(some))
    here = WebDatasetStorage(str(tmp_path / "shards"))
    for path in ("shards/shard-00000{0..2}.tar", "shards/*.tar"):
        assert summary(read_all(WebDatasetStorage(f"{URL}/{path}"))) == summary(read_all(here))
    files = ImageFiles([f"{URL}/photos/train/ash/00.jpg", f"{URL}/photos/train/ash/x.jpg"])
    first, last = files.read(np.arange(2))
    assert not isinstance(first, BadRecord) and isinstance(last, BadRecord)
    with pytest.raises(RemoteError, match="there is no such bucket"):
        len(ImageFolder("s3://photograph/photos"))


def test_files_are_listed_and_read_by_place(bucket):
    content = np.random.default_rng(1).bytes(20 << 20)  # in three pieces
    bucket.put_object(Key="listed/large.bin", Body=content)
    bucket.put_object(Key="listed/a b/\u00fc+&.txt", Body=b"small")
    url = f"{URL}/listed"
    listed = remote.list_files(url)
    assert [each[:2] for each in listed] == [("a b/\u00fc+&.txt", 5), ("large.bin", len(content))]
    large = RangeFile(f"{url}/large.bin", mark=listed[1][1:])
    assert large.read(1_000_000, 17 << 20) == content[1_000_000 : 1_000_000 + (17 << 20)]
    assert large.read_upto(len(content) - 3, 10) == content[-3:]
    assert large.read_upto(len(content) + 3, 10) == b""
    assert remote.look_at(url) == (["a b"], ["large.bin"])
    assert remote.find_file(f"{url}/typo.bin") is None
    bucket.put_object(Key="listed/large.bin", Body=b"small")
    with pytest.raises(RemoteError, match="its content was changed since it was looked at"):
        large.read(0, 2)
