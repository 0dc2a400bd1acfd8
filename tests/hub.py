"""A hub of data sets on loopback: what huggingface_hub asks of it to list and to read files."""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import unquote, urlsplit


class Hub:
    """Repositories by name, each its files by path.

    Attributes:
        repositories: Files by ``owner/name``.
        gated: Those whose files are refused, but listed.
        sent: Path and bytes of every answer with content of a file.
    """

    def __init__(self) -> None:
        self.repositories: dict[str, dict[str, bytes]] = {}
        self.gated: set[str] = set()
        self.sent: list[tuple[str, int]] = []
        hub = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                status, headers, body = hub.answer(self.path, self.command == "HEAD")
                self.send_response(status)
                for name, value in {"Content-Length": str(len(body)), **headers}.items():
                    self.send_header(name, value)
                self.end_headers()
                if self.command == "GET":
                    self.wfile.write(body)

            do_HEAD = do_GET

            def log_message(self, *args: object) -> None: ...

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}"

    def answer(self, target: str, is_head: bool) -> tuple[int, dict[str, str], bytes]:
        """Answer a request for a repository, a folder's listing, or a file."""
        parts = list(map(unquote, urlsplit(target).path.strip("/").split("/")))
        is_api = parts[0] == "api"
        owner, name, *rest = [*(parts[2:] if is_api else parts[1:]), "", ""]
        files = self.repositories.get(f"{owner}/{name}")
        if files is None:  # as it tells who is not logged in, whether there is one or not
            return 401, {"X-Error-Code": "RepoNotFound"}, b'{"error": "Repository not found"}'
        path = "/".join(rest[2:]).rstrip("/")
        if not is_api:
            return self._content(f"{owner}/{name}", files, path, is_head)
        if rest[:1] == ["tree"]:
            found = list(self._tree(files, path, "recursive=true" in target.lower()))
            if not found and path:
                return 404, {"X-Error-Code": "EntryNotFound"}, b'{"error": "no such folder"}'
            return 200, {"Content-Type": "application/json"}, json.dumps(found).encode()
        about = {"id": f"{owner}/{name}", "sha": "0" * 40, "private": False,
                 "siblings": [{"rfilename": path} for path in files]}  # fmt: skip
        return 200, {"Content-Type": "application/json"}, json.dumps(about).encode()

    def _content(
        self, repository: str, files: dict[str, bytes], path: str, is_head: bool
    ) -> tuple[int, dict[str, str], bytes]:
        if repository in self.gated:
            return 403, {"X-Error-Code": "GatedRepo"}, b'{"error": "not on the list"}'
        if not is_head:
            self.sent.append((path, len(files[path])))
        etag = hashlib.sha1(files[path]).hexdigest()
        return 200, {"ETag": f'"{etag}"', "X-Repo-Commit": "0" * 40}, files[path]

    def _tree(
        self, files: dict[str, bytes], folder: str, recursive: bool
    ) -> Iterator[dict[str, object]]:
        above = f"{folder}/" if folder else ""
        folders = set()
        for path, content in files.items():
            if not path.startswith(above):
                continue
            inner = path[len(above) :].split("/")
            for depth in range(1, len(inner)):
                if recursive or depth == 1:
                    folders.add(above + "/".join(inner[:depth]))
            if recursive or len(inner) == 1:
                oid = hashlib.sha1(content).hexdigest()
                yield {"type": "file", "oid": oid, "size": len(content), "path": path}
        for path in sorted(folders):
            yield {"type": "directory", "oid": "0" * 40, "size": 0, "path": path}


@contextmanager
def serving() -> Iterator[Hub]:
    """Serve a hub while the block lasts."""
    hub = Hub()
    thread = threading.Thread(target=hub.server.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    try:
        yield hub
    finally:
        hub.server.shutdown()
        hub.server.server_close()
        thread.join()
