"""Read remote data with obstore. Messages never contain credentials.

obstore finds them in the environment, in the metadata service of a cloud machine, and for
``s3://`` where boto3 looks, if it is installed.
"""

from __future__ import annotations

import errno
import importlib.util
import logging
import os
import posixpath
import re
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from datetime import timedelta
from functools import cache, partial
from pathlib import Path
from queue import SimpleQueue
from typing import Any, NamedTuple, TypeVar
from urllib.parse import unquote

from penstock.core.stage_times import Traffic, counted, traffic
from penstock.core.user_errors import ExplainedError
from penstock.datasets.files.access import MissingFile

log = logging.getLogger(__name__)

R = TypeVar("R")
T = TypeVar("T")

_STATUS = re.compile(r"status code: (\d{3})")
_ATTEMPT = re.compile(r"Error performing \w+ \S+ in .*? - ")
_SIGNED = re.compile(r"(\w+://[^\s?]+)\?\S+")
# A notebook, or the next loader in a process of a cluster, may set others.
_VARIABLES = ("AWS_ENDPOINT_URL", "AWS_ACCESS_KEY_ID", "GOOGLE_APPLICATION_CREDENTIALS",
              "AZURE_STORAGE_ACCOUNT_NAME", "AZURE_STORAGE_ACCOUNT_KEY")  # fmt: skip
_AT_ONCE = 64
_READER = "penstock-remote"
_ANSWER_S = 30
_PARTS_AT_ONCE = 4
_CONNECT_S = 5
_RETRY_S = 20
RETRY_S = 60.0
"""Default of ``dataset.retry_s``. With the limits above it stays below ``loader.timeout_s``."""
_LONGEST_PAUSE_S = 8.0
_QUIET_S = 0.5
"""Longer pauses are logged."""

Client = Any
"""Access to the files below one URL, by name; see `_Folder`."""

_retry_s = RETRY_S
_opened_in: int | None = None  # a process


class RemoteError(ExplainedError):
    """A bucket, server or URL cannot be read; never damage of a record."""


class AccessDenied(RemoteError):
    """Access is denied. S3 also denies missing files to keys without list permission."""


class Found(NamedTuple):
    """A file behind a URL; `mark` is its etag or time, and changes with its content."""

    name: str
    size_bytes: int
    mark: str


Answer = tuple[bytes, Found]
"""Bytes of a file, and the file."""


def side_by_side(read: Callable[[T], R], each: Sequence[T]) -> list[R]:
    """Call `read` for each item in parallel threads, and return the results in order."""
    if len(each) < 2 or threading.current_thread().name == _READER:
        return [read(one) for one in each]
    calls = [begin(partial(read, one)) for one in each]
    return [result_of(call) for call in calls]


def begin(call: Callable[[], R]) -> Future[tuple[R, Traffic]]:
    """Begin a call in a thread for server requests; see `result_of`."""
    future: Future[tuple[R, Traffic]] = Future()

    def run() -> None:
        try:
            with counted() as asked:
                future.set_result((call(), asked))
        except BaseException as error:
            future.set_exception(error)

    _calls().put(run)
    return future


def result_of(call: Future[tuple[R, Traffic]]) -> R:
    """Wait for a call of `begin`, and count its requests in this thread."""
    result, asked = call.result()
    traffic().add(asked)
    return result


@cache
def _calls() -> SimpleQueue[Callable[[], None]]:
    """Start daemon threads, which do not delay the exit as the threads of an executor do."""
    calls = SimpleQueue[Callable[[], None]]()

    def work() -> None:
        while True:
            calls.get()()

    for _ in range(_AT_ONCE):
        threading.Thread(target=work, name=_READER, daemon=True).start()
    return calls


def read_place(url: str, name: str, start: int, stop: int, mark: str | None = None) -> Answer:
    """Read bytes ``start .. stop - 1``, up to the end; RemoteError if `mark` has changed."""

    def read(client: Client) -> Answer:
        answer = content, found = client.get(name, start, stop)
        if mark not in (None, found.mark):
            raise RemoteError(f"{url}/{name}: {_CHANGED}")
        if len(content) != (wanted := max(min(stop, found.size_bytes) - start, 0)):
            raise OSError(errno.EIO, f"{len(content):,} of {wanted:,} bytes were sent")
        traffic().fetched_bytes += len(content)
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

    Raise MissingFile if `name` is missing, FileExistsError if it must be new, else RemoteError.
    """
    where = f"{url}/{name}" if name else url
    retry_s = _retry_s
    give_up = time.monotonic() + retry_s
    if _opened_in not in (None, os.getpid()):
        raise RemoteError(
            f"{url}: this process was forked from one that had read from there, whose connections "
            f"it cannot use; start it by multiprocessing's spawn"
        )
    pause_s = 0.1
    while True:
        try:
            traffic().requests += 1
            return question(_client(url))
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
                raise kind(f"{where}: {what}{tries}") from error
            if pause_s > _QUIET_S:
                _warn_once(f"{url}: {what}; retrying for {retry_s:g} s")
            time.sleep(min(pause_s, left_s, _LONGEST_PAUSE_S))
            pause_s *= 2


@cache
def _warn_once(text: str) -> None:
    log.warning("%s", text)


_CHANGED = "its content was changed since it was looked at; start again"
_DENIED = (
    "access is denied, or nothing is there and the key may not list; give credentials by the "
    "environment; for a public bucket set AWS_SKIP_SIGNATURE=true, or the variable of Google or "
    "Azure (docs/remote.md)"
)
_NO_BUCKET = "there is no such bucket; look at its name, and at AWS_ENDPOINT_URL"
_OTHER_REGION = "the bucket is in another region; set AWS_REGION to it"
_ENDPOINTS = "AWS_ENDPOINT_URL", "AWS_ENDPOINT", "GOOGLE_BASE_URL", "AZURE_STORAGE_ENDPOINT"
_REMEDIES = {
    "NoSuchBucket": _NO_BUCKET,
    "ContainerNotFound": "there is no such container; look at its name",
    "PermanentRedirect": _OTHER_REGION,
    "redirect without LOCATION": _OTHER_REGION,
    "Range request not supported": "the server sends whole files only; copy the data to a disk, or "
    "to a server that sends ranges, such as nginx",
    "AuthorizationHeaderMalformed": _OTHER_REGION,
    "ExpiredToken": "the credentials have expired; renew them and resume with trainer.resume=auto",
}


def _explained(error: Exception) -> tuple[bool, str | None]:
    """Return whether an error is temporary, and its description; None: the file is missing."""
    kind, said = type(error).__name__, str(error)
    status = found[1] if (found := _STATUS.search(said)) else ""
    for mark, remedy in _REMEDIES.items():
        if mark in f"{kind} {said}":
            return False, remedy
    if isinstance(error, FileNotFoundError):
        return False, None
    if kind in ("PermissionDeniedError", "UnauthenticatedError") or status in ("401", "403"):
        return False, _DENIED
    if "path segment" in said:  # which obstore cannot read
        return False, f"{_line(said)}; rename the file"
    if status[:1] != "4" or status in ("408", "429"):
        return True, f"the server answers {status}" if status else _line(said) or kind
    return False, _line(said)


def _line(said: object) -> str:
    """Return a library's message without the requested address, which may be signed."""
    text = _SIGNED.sub(r"\1", _ATTEMPT.sub("", str(said).partition("\n\nDebug source")[0]))
    if "error sending request" in text:
        return "the server does not answer; look at the network, and at AWS_ENDPOINT_URL if set"
    return " ".join(text.split())[:300]


def _client(url: str) -> Client:
    scheme, _, path = url.partition("://")
    host, _, folder = path.partition("/")
    folder = unquote(folder) if scheme.lower().startswith("http") else folder
    store = _open_client(f"{scheme}://{host}", *map(os.environ.get, _VARIABLES))
    return _Folder(store, posixpath.normpath(folder.strip("/")))


@cache
def _open_client(place: str, *variables: str | None) -> Any:
    """Open a bucket or a server by these variables; all its folders share the connections."""
    global _opened_in
    _opened_in = os.getpid()
    for name in _ENDPOINTS:  # obstore panics without a scheme
        if "://" not in (given := os.environ.get(name, "://")):
            remedy = f"type export {name}=http://{given}" if given else f"type unset {name}"
            raise RemoteError(f"{name} is {given!r}, expected http://host:port; {remedy}")
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
    try:
        from obstore.store import HTTPStore, from_url

        if place.lower().startswith("http"):
            return HTTPStore.from_url(place, **options)
        if place.lower().startswith("s3") and (provider := _boto3_credentials()) is not None:
            options["credential_provider"] = provider
        return from_url(place, **options)
    except Exception as error:  # obstore raises many types
        raise RemoteError(
            f"{place}: {_line(error)}; expected s3, gs, az or https, the package obstore (extra "
            f"remote), and the variables of the store (docs/remote.md)"
        ) from error


class _Folder:
    """The files below a folder of an object store or a web server, by their names in it."""

    def __init__(self, store: Any, folder: str) -> None:
        import obstore

        self._api, self._store = obstore, store
        self._start = "" if folder == "." else f"{folder}/"

    def files(self, folder: str = "") -> Iterator[Found]:
        """List all files, or all files below a folder."""
        for chunk in self._api.list(self._store, self._start + folder, chunk_size=1000):
            yield from map(self._found, chunk)

    def top(self) -> tuple[list[str], list[Found]]:
        """List the folders and files directly below the URL."""
        found = self._api.list_with_delimiter(self._store, self._start)
        folders = [path.rstrip("/").rpartition("/")[2] for path in found["common_prefixes"]]
        return folders, list(map(self._found, found["objects"]))

    def head(self, name: str) -> Found:
        return self._found(self._api.head(self._store, self._start + name))

    def get(self, name: str, start: int, stop: int) -> Answer:
        """Read bytes of a file, fewer at its end."""
        options: Any = {"range": (start, stop)}
        try:
            answer = self._api.get(self._store, self._start + name, options=options)
        except self._api.exceptions.GenericError as error:
            # obstore raises for a range that begins at the end of the file.
            if "status code: 416" in str(error) or "but object was only" in str(error):
                return b"", self.head(name)
            raise
        return bytes(answer.bytes()), self._found(answer.meta)

    def put(self, name: str, content: Path | bytes, *, new: bool = False) -> None:
        """Write a file atomically; FileExistsError if it must be `new` and exists."""
        options: Any = {"mode": "create" if new else "overwrite"}
        options["max_concurrency"] = _PARTS_AT_ONCE
        try:
            self._api.put(self._store, self._start + name, content, **options)
        except self._api.exceptions.AlreadyExistsError as error:
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), name) from error

    def delete(self, name: str) -> None:
        self._api.delete(self._store, self._start + name)

    def _found(self, each: Any) -> Found:
        mark = each["e_tag"] or str(each["last_modified"])
        if each["e_tag"] and not mark.endswith('"'):  # Azure lists etags without quotes
            mark = f'"{mark}"'
        return Found(each["path"][len(self._start) :], each["size"], mark)


def _boto3_credentials() -> Any:
    """Return boto3's profile or single sign-on credentials, or None."""
    if "AWS_ACCESS_KEY_ID" in os.environ or importlib.util.find_spec("boto3") is None:
        return None
    import boto3
    from obstore.auth.boto3 import Boto3CredentialProvider

    session = boto3.Session()
    return Boto3CredentialProvider(session) if session.get_credentials() is not None else None
