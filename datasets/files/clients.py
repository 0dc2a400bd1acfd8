"""Read remote data with obstore (object stores, web servers) or fsspec (other URLs).

obstore finds credentials in the environment, in the metadata service of a cloud machine, and for
``s3://`` where boto3 looks, if it is installed. Messages never contain credentials.
"""

from __future__ import annotations

import errno
import importlib.util
import logging
import os
import re
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from datetime import timedelta
from functools import cache, partial
from itertools import chain, repeat
from pathlib import Path
from queue import SimpleQueue
from typing import Any, NamedTuple, Protocol, TypeVar

from penstock.core.stage_times import Traffic, counted, traffic
from penstock.core.user_errors import ExplainedError
from penstock.datasets.files.access import OBJECT_STORES, MissingFile

log = logging.getLogger(__name__)

R = TypeVar("R")
T = TypeVar("T")

_OBSTORE = frozenset((*OBJECT_STORES, "http", "https"))
_CODE = re.compile(r"<Code>(\w+)</Code>")
_NOISE = re.compile(
    r"(error )?performing \w+ \S+ in [\w.]+|<[^>]*>|generic \w+ error:"
    r"|error performing list request:|,? ?after \d+ retries, max_retries: \d+, retry_timeout: \w+",
    re.IGNORECASE,
)
_STATUS = re.compile(r"(?:status code: |^(?=\d{3} (?:Client|Server) Error))(\d{3})")
_SIGNED = re.compile(r"(\w+://[^\s?]+)\?\S+")
UNFINISHED = ".packing"
"""Marks a folder that is still being written."""
_AT_ONCE = 64
_LISTED = 1000
"""Files per response to a listing."""
_ANSWER_S = 15
# The server responds after a whole part, which takes long on a slow connection.
_PART_S = 60
_PARTS_AT_ONCE = 4
_CONNECT_S = 5
_RETRY_S = 20
RETRY_S = 60.0
"""Default of ``dataset.retry_s``. With the limits above it stays below ``loader.timeout_s``."""
_PAUSES_S = (0.1, 0.2, 0.5, 1.0, 2.0, 4.0, 8.0)
"""Pauses between attempts; the last one repeats."""
_QUIET_S = 0.5
"""Longer pauses are logged."""

_retry_s = RETRY_S


class RemoteError(ExplainedError):
    """A bucket, server or URL cannot be read; never damage of a record."""


class AccessDenied(RemoteError):
    """Access is denied. S3 also denies missing files to keys without list permission."""


class Found(NamedTuple):
    """A file behind a URL; `mark` is its etag or time, and changes with its content."""

    name: str
    size_bytes: int
    mark: str


class Answer(NamedTuple):
    """Bytes of a file, and the file; None if it ends before them."""

    content: bytes
    file: Found | None


class Client(Protocol):
    """Access to the files below one URL, by name."""

    def files(self, folder: str = "") -> Iterator[Found]:
        """List all files, or all files below a folder."""

    def inside(self) -> tuple[list[str] | None, list[Found]]:
        """Return None and all files at any depth; if there are many, direct folders and files."""

    def head(self, name: str) -> Found:
        """Look up a file."""

    def get(self, name: str, start: int, stop: int, mark: str | None) -> Answer:
        """Read bytes of a file, fewer at its end; a server may check `mark`."""

    def put(self, name: str, content: Path | bytes, *, new: bool = False) -> None:
        """Write a file atomically; FileExistsError if it must be `new` and exists."""

    def delete(self, name: str) -> None:
        """Delete a file."""


class _Local(threading.local):
    reads_for_others = False


_local = _Local()


def side_by_side(read: Callable[[T], R], each: Sequence[T]) -> list[R]:
    """Call `read` for each item in parallel threads, and return the results in order.

    The calling thread counts the requests of all calls.
    """
    if len(each) < 2 or _local.reads_for_others:
        return [read(one) for one in each]

    def read_one(one: T) -> tuple[R, Traffic]:
        with counted() as asked:
            return read(one), asked

    start_reading = readers(os.getpid())
    results = []
    for one_read in [start_reading(partial(read_one, one)) for one in each]:
        result, asked = one_read.result()
        results.append(result)
        traffic().add(asked)
    return results


@cache
def readers(pid: int) -> Callable[[Callable[[], Any]], Future[Any]]:
    """Start threads for server requests; return a function that submits a call to them.

    The threads are daemons: unlike an executor's threads, they do not delay the process exit.
    """
    calls = SimpleQueue[tuple[Callable[[], Any], Future[Any]]]()

    def read_for_others() -> None:
        _local.reads_for_others = True
        while True:
            call, future = calls.get()
            try:
                future.set_result(call())
            except BaseException as error:
                future.set_exception(error)
            del call, future  # free the result while the thread waits

    def start_reading(call: Callable[[], Any]) -> Future[Any]:
        calls.put((call, future := Future[Any]()))
        return future

    for _ in range(_AT_ONCE):
        threading.Thread(target=read_for_others, daemon=True).start()
    return start_reading


def read_place(url: str, name: str, start: int, stop: int, mark: str | None = None) -> Answer:
    """Read bytes ``start .. stop - 1`` of a file, up to its end; see `ask` for errors.

    Changed content raises RemoteError if `mark` is given; see `Found`.
    """

    def read(client: Client) -> Answer:
        answer = content, found = client.get(name, start, stop, mark)
        if found is not None:  # some servers ignore conditions and ranges
            if mark not in (None, found.mark):
                raise RemoteError(f"{url}/{name}: {_CHANGED}")
            if len(content) != (wanted := max(min(stop, found.size_bytes) - start, 0)):
                raise OSError(errno.EIO, f"{len(content):,} of {wanted:,} bytes were sent")
        traffic().size_bytes += len(content)
        return answer

    return ask(url, read, name)


def set_retry_s(retry_s: float) -> None:
    """Set how long this process retries failed remote reads, in seconds."""
    global _retry_s
    _retry_s = retry_s


def get_retry_s() -> float:
    """Return how long this process retries failed remote reads, in seconds."""
    return _retry_s


def ask(url: str, question: Callable[[Client], T], name: str = "") -> T:
    """Call `question` with the client of a URL; retry temporary errors for ``dataset.retry_s``.

    Raises:
        MissingFile: The file `name` is missing.
        FileExistsError: The file exists and must be new.
        RemoteError: Any other failure.
    """
    where = f"{url}/{name}" if name else url
    retry_s = _retry_s
    give_up = time.monotonic() + retry_s
    pauses_s = chain(_PAUSES_S, repeat(_PAUSES_S[-1]))
    while True:
        try:
            traffic().requests += 1
            return question(_client(url, os.getpid()))
        except (RemoteError, MissingFile, FileExistsError, MemoryError, TypeError, AttributeError):
            raise  # already explained, or not a server error
        except Exception as error:
            passing, what = _explained(error)
            if what is None:
                raise MissingFile(f"not there: {where}") from error
            left_s = give_up - time.monotonic()
            if not passing or left_s <= 0:
                tries = f", after several tries in dataset.retry_s={retry_s:g} s" if passing else ""
                kind = AccessDenied if what == _DENIED else RemoteError
                raise kind(f"{where}: {_of_scheme(url, what)}{tries}") from error
            pause_s = next(pauses_s)
            if pause_s > _QUIET_S:
                _warn_once(f"{url}: {_of_scheme(url, what)}; retrying for {retry_s:g} s")
            time.sleep(min(pause_s, left_s))


@cache
def _warn_once(text: str) -> None:
    log.warning("%s", text)


_CHANGED = "its content was changed since it was looked at; start again"
_DENIED = (
    "access is denied, or nothing is there and the key may not list; give credentials by the "
    "environment, or, where the bucket is public, set AWS_SKIP_SIGNATURE=true (docs/remote.md)"
)
_NO_BUCKET = "there is no such bucket; look at its name, and at AWS_ENDPOINT_URL"
_NO_REPOSITORY = (
    "the hub shows no such repository; look at its name, as in hf://datasets/owner/name, or, where "
    "it is private, set HF_TOKEN or type: hf auth login"
)
_REMEDIES = {
    "NoSuchBucket": _NO_BUCKET,
    "ContainerNotFound": _NO_BUCKET.replace("bucket", "container"),
    "PermanentRedirect": "the bucket is in another region; set AWS_REGION to it",
    "AuthorizationHeaderMalformed": "the bucket is in another region; set AWS_REGION to it",
    "ExpiredToken": "the credentials have expired; renew them and resume with trainer.resume=auto",
    "PreconditionError": _CHANGED,
}


def _explained(error: Exception) -> tuple[bool, str | None]:
    """Return whether an error is temporary, and its description; None: the file is missing."""
    kind, said = type(error).__name__, str(error).partition("\n\nDebug source")[0]
    code, status = (found[1] if (found := p.search(said)) else "" for p in (_CODE, _STATUS))
    if remedy := next((text for mark, text in _REMEDIES.items() if mark in (code, kind)), None):
        return False, remedy
    if "redirect without LOCATION" in said:
        return False, _REMEDIES["PermanentRedirect"]
    if "(repository not found)" in said:
        return False, _NO_REPOSITORY
    if isinstance(error, FileNotFoundError):
        return False, None
    denied = kind in ("PermissionDeniedError", "UnauthenticatedError") or status in ("401", "403")
    if denied or isinstance(error, PermissionError):
        return False, _DENIED
    if isinstance(error, ValueError):  # the library cannot parse the URL
        return False, _line(said)
    if isinstance(error, ImportError):
        return False, f"needs a library: {_line(error)}"
    if status[:1] == "4" and status not in ("408", "429"):
        return False, f"the server refuses it: {_line(said)}"
    return True, _line(said) or kind


def _line(said: object) -> str:
    """Return a library's message without the requested address, which may be signed."""
    told = str(said).partition("\n\nDebug source")[0]
    text = _SIGNED.sub(r"\1", _NOISE.sub(" ", told))
    if "error sending request" in text:
        return "the server does not answer; look at the network, and at AWS_ENDPOINT_URL if set"
    return " ".join(text.split()).strip(" -:")[:300]


def _of_scheme(url: str, what: str) -> str:
    """Replace S3 variables in a message with the variables of the URL's store."""
    scheme = url.partition(":")[0]
    if scheme == "gs":
        return what.replace("AWS_ENDPOINT_URL", "GOOGLE_BASE_URL").replace("AWS_", "GOOGLE_")
    if scheme == "hf" and what == _DENIED:
        return "access is denied; ask for it on its page, then set HF_TOKEN or type: hf auth login"
    if scheme in _OBSTORE and scheme[0] == "a":
        endpoint = "AZURE_STORAGE_ENDPOINT"
        return what.replace("AWS_ENDPOINT_URL", endpoint).replace("AWS_", "AZURE_")
    return what


_was_used = False


def _forbid_in_fork() -> None:
    global _client
    if _was_used:
        _client = _refuse_in_fork


os.register_at_fork(after_in_child=_forbid_in_fork)


def _refuse_in_fork(url: str, pid: int) -> Client:
    raise RemoteError(
        f"{url}: this process was forked from one that had read from there, whose connections it "
        f"cannot use; start it by multiprocessing's spawn"
    )


@cache
def _open_client(url: str, pid: int) -> Client:
    global _was_used
    _was_used = True
    scheme = url.partition(":")[0].lower()
    needed, extra = "obstore" if scheme in _OBSTORE else "fsspec", "remote"
    if scheme == "hf":
        needed, extra = "huggingface_hub", "hub"
    if importlib.util.find_spec(needed) is None:
        raise RemoteError(
            f"{url}: the package {needed} is missing (the extra {extra}); run: pip install {needed}"
        )
    return _ObjectStore(url, scheme) if scheme in _OBSTORE else _FileSystem(url)


_client: Callable[[str, int], Client] = _open_client


class _ObjectStore:
    """The files below a URL of an object store or a web server."""

    def __init__(self, url: str, scheme: str) -> None:
        from obstore.exceptions import BaseError
        from obstore.store import HTTPStore, from_url

        options: dict[str, Any] = {
            "client_options": {
                "allow_http": True,  # for an http endpoint of the user
                "connect_timeout": timedelta(seconds=_CONNECT_S),
                "read_timeout": timedelta(seconds=_ANSWER_S),  # between two pieces
                "timeout": timedelta(hours=1),
                "pool_max_idle_per_host": str(_AT_ONCE),
            },
            "retry_config": {"max_retries": 2, "retry_timeout": timedelta(seconds=_RETRY_S)},
        }
        if scheme.startswith("s3") and (provider := _boto3_credentials()) is not None:
            options["credential_provider"] = provider
        make = HTTPStore.from_url if scheme.startswith("http") else from_url
        try:
            self._store = make(url, **options)
        except BaseError as error:
            remedy = "set what is lacking in the environment (docs/remote.md)"
            raise RemoteError(f"{url}: {_line(error)}; {remedy}") from error
        options["client_options"]["read_timeout"] = timedelta(seconds=_PART_S)
        self._writing = cache(partial(make, url, **options))

    def files(self, folder: str = "") -> Iterator[Found]:
        import obstore

        for chunk in obstore.list(self._store, folder, chunk_size=_LISTED):
            yield from map(_found, chunk)

    def inside(self) -> tuple[list[str] | None, list[Found]]:
        import obstore

        first: Sequence[Any] = next(iter(obstore.list(self._store, chunk_size=_LISTED)), [])
        if len(first) < _LISTED:
            return None, list(map(_found, first))
        found = obstore.list_with_delimiter(self._store)
        folders = [path.rstrip("/").rpartition("/")[2] for path in found["common_prefixes"]]
        return folders or None, list(map(_found, found["objects"]))

    def head(self, name: str) -> Found:
        import obstore

        return _found(obstore.head(self._store, name))

    def get(self, name: str, start: int, stop: int, mark: str | None) -> Answer:
        import obstore

        options: Any = {"range": (start, stop)}
        if mark is not None and mark.startswith('"'):
            options["if_match"] = mark
        try:
            answer = obstore.get(self._store, name, options=options)
        except obstore.exceptions.GenericError as error:
            status = _STATUS.search(str(error))
            # obstore raises for a range that begins at the end of the file.
            if (status and status[1] == "416") or "but object was only" in str(error):
                return Answer(b"", None)
            raise
        return Answer(bytes(answer.bytes()), _found(answer.meta))

    def put(self, name: str, content: Path | bytes, *, new: bool = False) -> None:
        import obstore

        mode: Any = "create" if new else "overwrite"
        try:
            obstore.put(self._writing(), name, content, mode=mode, max_concurrency=_PARTS_AT_ONCE)
        except obstore.exceptions.AlreadyExistsError as error:
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), name) from error

    def delete(self, name: str) -> None:
        import obstore

        obstore.delete(self._store, name)


def _found(each: Any) -> Found:
    mark = each["e_tag"] or str(each["last_modified"])
    if each["e_tag"] and not mark.endswith('"'):  # Azure lists etags without quotes
        mark = f'"{mark}"'
    return Found(each["path"], each["size"], mark)


def _boto3_credentials() -> Any:
    """Return boto3's profile or single sign-on credentials, or None."""
    if "AWS_ACCESS_KEY_ID" in os.environ or importlib.util.find_spec("boto3") is None:
        return None
    import boto3
    from obstore.auth.boto3 import Boto3CredentialProvider

    session = boto3.Session()
    return Boto3CredentialProvider(session) if session.get_credentials() is not None else None


class _FileSystem:
    """The files below a URL that fsspec supports."""

    def __init__(self, url: str) -> None:
        from fsspec.core import url_to_fs

        try:
            self._fs, self._root = url_to_fs(url)
        except ValueError as error:
            raise RemoteError(f"{url}: {error}; expected s3, gs, az, https or hf") from None
        self._root = self._root.rstrip("/")
        # By default, each read from the hub prefetches 5 MiB.
        self._reading = {"cache_type": "none"} if url.lower().startswith("hf:") else {}
        self._known: dict[str, Found] = {}

    def files(self, folder: str = "") -> Iterator[Found]:
        self._fs.invalidate_cache()
        for path, info in self._fs.find(f"{self._root}/{folder}", detail=True).items():
            if info:  # empty for a path that is a file itself
                yield self._found(path, info)

    def inside(self) -> tuple[list[str] | None, list[Found]]:
        return None, list(self.files())

    def head(self, name: str) -> Found:
        path = f"{self._root}/{name}"
        info = self._fs.info(path)
        if info["type"] != "file":
            raise FileNotFoundError(errno.ENOENT, "a folder", path)
        return self._found(path, info)

    def get(self, name: str, start: int, stop: int, mark: str | None) -> Answer:
        path, found = f"{self._root}/{name}", self._known.get(name) or self.head(name)
        return Answer(bytes(self._fs.cat_file(path, start, stop, **self._reading)), found)

    def put(self, name: str, content: Path | bytes, *, new: bool = False) -> None:
        path = f"{self._root}/{name}"
        assert not new, "object stores alone"
        self._fs.makedirs(path.rpartition("/")[0], exist_ok=True)
        if isinstance(content, bytes):
            self._fs.pipe_file(path, content)
        else:
            self._fs.put_file(os.fspath(content), path)
        self._fs.invalidate_cache()

    def delete(self, name: str) -> None:
        self._fs.rm_file(f"{self._root}/{name}")

    def _found(self, path: str, info: Any) -> Found:
        names = ("ETag", "etag", "blob_id", "LastModified", "mtime", "created")
        marks = (info.get(name) for name in names)
        mark = next((str(mark) for mark in marks if mark is not None), str(info["size"]))
        name = path[len(self._root) + 1 :]
        self._known[name] = Found(name, info["size"], mark)
        return self._known[name]
