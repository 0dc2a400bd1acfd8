"""A bucket of a real S3 server on loopback, moto's, with the credentials in a profile of boto3."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from penstock.datasets.files import clients


@contextmanager
def moto_bucket(monkeypatch: pytest.MonkeyPatch, folder: Path) -> Iterator[Any]:
    """Run the server, let S3's variables of the environment lead there, and make a bucket."""
    moto = pytest.importorskip("moto.server", reason="type pip install 'moto[server]'")
    boto3 = pytest.importorskip("boto3")
    server = moto.ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    url = "http://{}:{}".format(*server.get_host_and_port())
    monkeypatch.setenv("XDG_CACHE_HOME", str(folder / "cache"))
    monkeypatch.setenv("AWS_ENDPOINT_URL", url)
    monkeypatch.delenv("AWS_ACCESS_KEY_ID", raising=False)
    monkeypatch.setenv("AWS_REGION", "us-east-1")
    (folder / "credentials").write_text(
        "[work]\naws_access_key_id = key\naws_secret_access_key = secret\n"
    )
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(folder / "credentials"))
    monkeypatch.setenv("AWS_PROFILE", "work")
    clients._open_client.cache_clear()
    bucket = boto3.resource("s3", endpoint_url=url, region_name="us-east-1").Bucket("photographs")
    bucket.create()
    try:
        yield bucket
    finally:
        server.stop()
        clients._open_client.cache_clear()
