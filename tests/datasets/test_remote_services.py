"""Data on servers that others wrote: S3 by moto."""

from __future__ import annotations

import logging

import numpy as np
import pytest

from penstock.datasets.files import clients
from penstock.datasets.files.clients import RemoteError
from penstock.datasets.storages.image_folder import ImageFolder
from penstock.datasets.storages.webdataset import WebDatasetStorage, WebDatasetWriter
from penstock.datasets.writing import write_storage
from tests.contracts.storage import read_all, summary
from tests.laws.conftest import make_photos

pytestmark = pytest.mark.service


@pytest.fixture
def bucket(monkeypatch, tmp_path):
    moto = pytest.importorskip("moto.server", reason="type pip install 'moto[server]'")
    boto3 = pytest.importorskip("boto3")
    server = moto.ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    url = "http://{}:{}".format(*server.get_host_and_port())
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("AWS_ENDPOINT_URL", url)
    monkeypatch.delenv("AWS_ACCESS_KEY_ID", raising=False)
    monkeypatch.setenv("AWS_REGION", "us-east-1")
    (tmp_path / "credentials").write_text(
        "[work]\naws_access_key_id = key\naws_secret_access_key = secret\n"
    )
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "credentials"))
    monkeypatch.setenv("AWS_PROFILE", "work")
    clients._open_client.cache_clear()
    bucket = boto3.resource("s3", endpoint_url=url, region_name="us-east-1").Bucket("photographs")
    bucket.create()
    yield bucket
    server.stop()
    clients._open_client.cache_clear()


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
