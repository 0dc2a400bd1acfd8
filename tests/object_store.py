"""A small object store on loopback: S3's listings and ranges, and the faults of real ones."""

from __future__ import annotations

import hashlib
import re
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import lru_cache
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import parse_qs, unquote, urlsplit
from xml.sax.saxutils import escape, unescape

BUCKET = "bucket"
Fault = int | str | None
"""A status to answer with; ``cut``: a body that breaks off; ``stall``: none that comes; ``short``:
half of it, as if the request named no more; ``whole``: all of it, whatever the range;
``bare``: etags of listings without quotes."""


class ObjectStore:
    """The files of a bucket, served as S3 serves them, and as a web server does.

    Attributes:
        files: Content by key.
        fault: Called with the method and the key of a request; says what goes wrong with it.
        requests: Method and key of every request.
        sent_bytes: Content that was sent.
        latency_s: Seconds before the content of an answer.
        bytes_per_s: Limit of all answers together.
    """

    def __init__(self) -> None:
        self.files: dict[str, bytes] = {}
        self.fault: Callable[[str, str], Fault] = lambda method, key: None
        self.requests: list[tuple[str, str]] = []
        self.sent_bytes = 0
        self.latency_s = 0.0
        self.bytes_per_s = float("inf")
        self._wire_free_s = 0.0
        self._parts: dict[str, dict[int, bytes]] = {}
        self._lock = threading.Lock()
        store = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            wbufsize = 1 << 16

            def do_GET(self) -> None:
                store.answer(self)

            do_HEAD = do_PUT = do_POST = do_GET

            def parse_request(self) -> bool:
                """Parse by hand, for a fifth of the time: benchmarks share the cores with this."""
                self.command, self.path, self.request_version = (
                    self.raw_requestline.decode().split()
                )
                lines = iter(self.rfile.readline, b"\r\n")
                pairs = (line.decode("latin-1").partition(":") for line in lines)
                self.headers = {name.title(): value.strip() for name, _, value in pairs}  # type: ignore[assignment]
                self.close_connection = self.headers.get("Connection", "").lower() == "close"
                return True

        class Server(ThreadingHTTPServer):
            daemon_threads = True
            request_queue_size = 256

            def handle_error(self, *given: object) -> None:
                pass  # a client that left

        self._server = Server(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        threading.Thread(target=self._server.serve_forever, args=(0.01,), daemon=True).start()

    def put(self, folder: Path, prefix: str) -> str:
        """Store the files below a folder, or one file, and give their URL."""
        for path in [folder] if folder.is_file() else sorted(folder.rglob("*")):
            if path.is_file():
                name = "" if path == folder else f"/{path.relative_to(folder).as_posix()}"
                self.files[f"{prefix}{name}"] = path.read_bytes()
        return f"s3://{BUCKET}/{prefix}"

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()

    def answer(self, request: BaseHTTPRequestHandler) -> None:
        parts = urlsplit(request.path)
        bucket, _, key = unquote(parts.path).lstrip("/").partition("/")
        came = request.rfile.read(int(request.headers.get("Content-Length", 0)))
        with self._lock:
            self.requests.append((request.command, key or parts.query))
        time.sleep(self.latency_s)
        fault = self.fault(request.command, key)
        if fault == "stall":
            time.sleep(3600)
        if isinstance(fault, int):
            return self._send(request, fault, _error({301: "PermanentRedirect"}.get(fault, "Odd")))
        if bucket != BUCKET:
            return self._send(request, 404, _error("NoSuchBucket"))
        if request.command in ("PUT", "POST"):
            query = parse_qs(parts.query, keep_blank_values=True)
            return self._change(request, key, query, came, cut=fault == "cut")
        if not key:
            return self._list(request, parse_qs(parts.query))
        content = self.files.get(key)
        if content is None:
            return self._send(request, 404, _error("NoSuchKey"))
        etag = _etag(content)
        wanted = request.headers.get("If-Match")
        if wanted is not None and wanted != etag:
            return self._send(request, 412, _error("PreconditionFailed"))
        headers = {"ETag": etag, "Last-Modified": "Mon, 05 Jan 2026 10:00:00 GMT"}
        status, size = 200, len(content)
        if (span := request.headers.get("Range")) is not None and fault != "whole":
            first, _, last = span.removeprefix("bytes=").partition("-")
            start, stop = int(first), min(int(last or size - 1) + 1, size)
            if fault == "short":
                stop = (start + stop) // 2
            if start >= size:
                return self._send(request, 416, _error("InvalidRange"))
            content, status = content[start:stop], 206
            headers["Content-Range"] = f"bytes {start}-{stop - 1}/{size}"
        self._send(request, status, content, headers, cut=fault == "cut")

    def _change(self, request: BaseHTTPRequestHandler, key: str, query: dict[str, list[str]],
                content: bytes, *, cut: bool) -> None:  # fmt: skip
        """Put a file, whole or in parts, or remove one; `cut` forgets what came."""
        if cut:
            request.close_connection = True
            return request.connection.shutdown(socket.SHUT_RDWR)
        if "delete" in query:
            keys = [unescape(key) for key in re.findall("<Key>(.*?)</Key>", content.decode())]
            gone = (f"<Deleted><Key>{escape(key)}</Key></Deleted>" for key in keys)
            for key in keys:
                self.files.pop(key, None)
            body = f"<DeleteResult>{''.join(gone)}</DeleteResult>"
            return self._send(request, 200, body.encode())
        upload = query.get("uploadId", [""])[0]
        if "uploads" in query:
            upload = f"upload-{len(self.requests)}"
            body = f"<InitiateMultipartUploadResult><UploadId>{upload}</UploadId>"
            return self._send(request, 200, f"{body}</InitiateMultipartUploadResult>".encode())
        if request.command == "PUT" and upload:
            self._parts.setdefault(upload, {})[int(query["partNumber"][0])] = content
            return self._send(request, 200, b"", {"ETag": _etag(content)})
        if request.headers.get("If-None-Match") == "*" and key in self.files:
            return self._send(request, 412, _error("PreconditionFailed"))
        if upload:
            parts = self._parts.pop(upload)
            content = b"".join(parts[number] for number in sorted(parts))
        self.files[key] = content
        answer = f"<CompleteMultipartUploadResult><ETag>{escape(_etag(content))}</ETag>"
        body = f"{answer}</CompleteMultipartUploadResult>".encode() if upload else b""
        self._send(request, 200, body, {"ETag": _etag(content)})

    def _send(self, request: BaseHTTPRequestHandler, status: int, content: bytes,
              headers: dict[str, str] | None = None, *, cut: bool = False) -> None:  # fmt: skip
        told = {**(headers or {}), "Content-Length": str(len(content))}
        lines = (f"{name}: {value}\r\n" for name, value in told.items())
        request.wfile.write(f"HTTP/1.1 {status} It is so\r\n{''.join(lines)}\r\n".encode())
        if request.command == "HEAD":
            return
        with self._lock:
            self.sent_bytes += len(content)
            now = time.monotonic()
            self._wire_free_s = max(self._wire_free_s, now) + len(content) / self.bytes_per_s
            wait_s = self._wire_free_s - now
        time.sleep(wait_s)
        request.wfile.write(content[: len(content) // 2] if cut else content)
        if cut:
            request.wfile.flush()
            request.connection.shutdown(socket.SHUT_RDWR)
            request.close_connection = True

    def _list(self, request: BaseHTTPRequestHandler, query: dict[str, list[str]]) -> None:
        prefix, delimiter = query.get("prefix", [""])[0], query.get("delimiter", [""])[0]
        after = query.get("continuation-token", [""])[0]
        entries, folders, last = [], [], ""
        quotes = '"' if self.fault("LIST", prefix) == "bare" else ""
        for key in sorted(key for key in self.files if key.startswith(prefix) and key > after):
            inside, found, _ = key[len(prefix) :].partition(delimiter or "\0")
            if found and delimiter:
                if (folder := prefix + inside + delimiter) not in folders:
                    folders.append(folder)
                continue
            content = self.files[key]
            entries.append(
                f"<Contents><Key>{escape(key)}</Key><Size>{len(content)}</Size>"
                f"<ETag>{_etag(content).strip(quotes)}</ETag>"
                f"<LastModified>2026-01-05T10:00:00.000Z</LastModified></Contents>"
            )
            last = key
            if len(entries) == 100:
                break
        more = len(entries) == 100
        token = f"<NextContinuationToken>{escape(last)}</NextContinuationToken>" if more else ""
        commons = (
            f"<CommonPrefixes><Prefix>{escape(f)}</Prefix></CommonPrefixes>" for f in folders
        )
        body = (
            f"<ListBucketResult><IsTruncated>{str(more).lower()}</IsTruncated>{token}"
            f"{''.join(entries)}{''.join(commons)}</ListBucketResult>"
        )
        self._send(request, 200, body.encode())


@lru_cache(10_000)
def _etag(content: bytes) -> str:
    return f'"{hashlib.md5(content).hexdigest()}"'


def _error(code: str) -> bytes:
    return f"<Error><Code>{code}</Code><Message>it is so</Message></Error>".encode()


@contextmanager
def object_store(patch: Callable[[str, str], None]) -> Iterator[ObjectStore]:
    """Run one, and let S3's variables of the environment lead there; `patch` sets one of them."""
    from penstock.datasets.files import clients  # the store serves programs without it, too

    store = ObjectStore()
    for name, value in {
        "AWS_ENDPOINT_URL": store.url,
        "AWS_ACCESS_KEY_ID": "key",
        "AWS_SECRET_ACCESS_KEY": "secret-of-the-user",
        "AWS_REGION": "us-east-1",
    }.items():
        patch(name, value)
    clients._open_client.cache_clear()
    try:
        yield store
    finally:
        store.close()
        clients._open_client.cache_clear()
