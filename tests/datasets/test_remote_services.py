"""Data on servers that others wrote: S3 by moto."""

from __future__ import annotations

import numpy as np
import pytest

from penstock.datasets.files.clients import RemoteError
from penstock.datasets.storages.image_folder import ImageFolder
from penstock.datasets.storages.webdataset import WebDatasetStorage, WebDatasetWriter
from penstock.datasets.writing import write_storage
from tests.contracts.storage import read_all, summary
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
