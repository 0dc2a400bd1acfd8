"""Read what lies behind URLs: object stores and web servers by obstore, all else by fsspec.

Both find credentials where their ecosystem keeps them: obstore in the environment, in the metadata
service of a cloud's machine, and for ``s3://`` wherever boto3 looks, if that is installed. Neither
they nor what a URL carries of them stands in a message.
"""

from __future__ import annotations

import atexit
import errno
import fnmatch
import glob
import importlib.util
import io
import os
import re
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import timedelta
from functools import cache, partial
from multiprocessing.pool import AsyncResult, ThreadPool
from pathlib import Path
from typing import Any, NamedTuple, Protocol, TypeVar
from urllib.parse import unquote

import numpy as np
from numpy.typing import NDArray

from penstock.core.files import locked, machine_folder
from penstock.core.machine_cache import computed_once, signature_of
from penstock.core.sample import MAX_RECORD_BYTES, too_large
from penstock.core.user_errors import ExplainedError
from penstock.datasets.files.access import (
    MissingFile,
    SharedFile,
    absolute_path,
    expand_braces,
)
from penstock.datasets.files.reading_thread import still_wanted

T = TypeVar("T")

_OBSTORE = frozenset(("s3", "s3a", "gs", "az", "adl", "azure", "abfs", "abfss", "http", "https"))
_CODE = re.compile(r"<Code>(\w+)</Code>")
_NOISE = re.compile(
    r"(error )?performing \w+ \S+ in [\w.]+|<[^>]*>|generic \w+ error:"
    r"|error performing list request:|,? ?after \d+ retries, max_retries: \d+, retry_timeout: \w+",
    re.IGNORECASE,
)
_STATUS = re.compile(r"status code: (\d{3})")
_AT_ONCE = 64
_PIECE_BYTES = 8 << 20
_AT_ONCE_BYTES = 8 * _PIECE_BYTES
# Together well below loader.timeout_s: what waits longer is taken for a record that hangs.
_ANSWER_S = 15
_CONNECT_S = 5
_RETRY_S = 20
_GIVE_UP_S = 45
_PAUSES_S = (0.5, 2.0, 8.0)
_TICK_S = 0.2


class RemoteError(ExplainedError):
    """A bucket, a server or a URL that gives no data; never damage of a record."""


class Found(NamedTuple):
    """A file behind a URL.

    Attributes:
        name: Its path below the URL that was listed.
        size_bytes: Its size.
        mark: Changes with its content: its etag, or its time.
    """

    name: str
    size_bytes: int
    mark: str


class _Client(Protocol):
    """Files below one URL, by their names."""

    def files(self) -> Iterator[Found]:
        """All of them."""

    def folder(self) -> tuple[list[str], list[str]]:
        """Names of the folders and of the files that lie in it."""

    def head(self, name: str) -> Found:
        """One of them."""

    def get(self, name: str, start: int, stop: int, mark: str | None) -> bytes:
        """Bytes of a file, fewer at its end; of the content that `mark` stands for, if given."""


@dataclass(slots=True)
class Traffic:
    """What this thread asked for.

    Attributes:
        requests: Reads and listings.
        size_bytes: Bytes that came.
    """

    requests: int = 0
    size_bytes: int = 0


class _Local(threading.local):
    def __init__(self) -> None:
        self.traffic = Traffic()
        self.reads_for_others = False


_local = _Local()


def traffic() -> Traffic:
    """Count what this thread has asked for since it began."""
    return _local.traffic


def list_files(url: str) -> list[Found]:
    """List all files below a URL, by their names.

    Raises:
        RemoteError: It cannot be listed, as a web server's folders.
    """
    if url.startswith("http"):
        raise RemoteError(
            f"{url}: no file is there, and a web server lists no folders; name its files, one or "
            f"several, as in https://host/part-{{000..099}}.tar, or images by "
            f"dataset.storage.pattern and count"
        )
    return sorted(_asked(url, lambda client: list(client.files())))


def list_folder(url: str) -> tuple[list[str], list[str]]:
    """List the names of the folders and of the files that lie in a URL; see `list_files`."""
    return _asked(url, lambda client: client.folder())


def find_file(url: str) -> Found | None:
    """Look at one file; None: it is not there. Raises as `list_files` does."""
    folder, name = _split(url, None)
    if folder.endswith(":/"):  # a whole bucket
        return None
    try:
        return _asked(folder, lambda client: client.head(name))
    except MissingFile:
        return None


def find_named(
    urls: Sequence[str], *, endings: Sequence[str], where: str
) -> tuple[str, dict[str, tuple[int, str]]]:
    """Find the files that URLs without braces name: files, folders, or patterns with ``*``.

    Args:
        urls: What is looked for.
        endings: Of the files that count in a folder.
        where: The storage, for messages.

    Returns:
        The URL above all of them, and size and mark by the name below it, sorted.

    Raises:
        ValueError: Something is not there, or is named twice.
        RemoteError: It cannot be looked for.
    """
    found: dict[str, tuple[int, str]] = {}
    for url, files in zip(urls, side_by_side(partial(_named, endings), urls), strict=True):
        if not files:
            kind = f"{' or '.join(endings)} files" if any(endings) else "files"
            raise ValueError(
                f"{where}: nothing there: {url}; expected a file, a folder of {kind}, or a "
                f"pattern; set dataset.storage.path"
            )
        for file, each in files:
            if file in found:
                raise ValueError(f"{where}: {file} is named twice; name every file once")
            found[file] = each.size_bytes, each.mark
    root = next(iter(found)).rpartition("/")[0]
    while not all(file.startswith(f"{root}/") for file in found):
        root = root.rpartition("/")[0]
        if root.endswith(":/") or not root:
            raise ValueError(
                f"{where}: {urls[0]} and {urls[-1]} lie in different places; take each as a data "
                f"set of its own: dataset=mix"
            )
    return root, {file[len(root) + 1 :]: found[file] for file in sorted(found)}


def _named(endings: Sequence[str], url: str) -> list[tuple[str, Found]]:
    """Find the files that one URL names, each by its URL."""
    if glob.has_magic(url):
        folder = url[: re.search(r"[*?[]", url).start()].rpartition("/")[0]  # type: ignore[union-attr]
        wanted = url[len(folder) + 1 :].split("/")
        there = [(each, each.name.split("/")) for each in list_files(folder)]
        return [
            (f"{folder}/{each.name}", each)
            for each, parts in there
            if len(parts) == len(wanted) and all(map(fnmatch.fnmatchcase, parts, wanted))
        ]
    if (file := find_file(url)) is not None:
        return [(url, file)]
    ends = tuple(ending.lower() for ending in endings)
    inside = [each for each in list_files(url) if each.name.lower().endswith(ends)]
    return [(f"{url}/{each.name}", each) for each in inside if "/." not in f"/{each.name}"]


def read_url(url: str, *, root: str | None = None, max_bytes: int = MAX_RECORD_BYTES) -> bytes:
    """Read a whole file.

    Raises:
        MissingFile: It is not there, or is larger than `max_bytes`.
        RemoteError: The server has trouble, or does not let us.
    """
    folder, name = _split(url, root)
    content = _asked(folder, lambda client: client.get(name, 0, max_bytes + 1, None), name)
    if len(content) > max_bytes:
        raise MissingFile(too_large(len(content), max_bytes))
    return content


class RemoteFile(SharedFile):
    """A file behind a URL, read by place: what `datasets.files.access.SharedFile` is for a disk.

    Args:
        path: Its URL.
        root: The URL of the data set, above it.
        mark: See `Found`; where it is given, other content is an error.
    """

    piece_bytes = _PIECE_BYTES

    def __init__(self, path: str, *, root: str, mark: str | None = None) -> None:
        super().__init__(path, root=root)
        self._mark = mark

    def view(self, offset: int, size_bytes: int) -> NDArray[np.uint8]:
        """As `read`, uint8 [size_bytes], read-only."""
        return np.frombuffer(self.read(offset, size_bytes), np.uint8)

    def read_upto(self, offset: int, size_bytes: int) -> bytes:
        """Read the bytes at a place, as many of them as there are.

        Raises:
            MissingFile: The file is gone.
            RemoteError: The server has trouble, does not let us, or has other content now.
        """
        folder, name = _split(self.path, self.root)
        pieces = [
            (start, min(start + _PIECE_BYTES, offset + size_bytes))
            for start in range(offset, offset + size_bytes, _PIECE_BYTES)
        ]

        def read(piece: tuple[int, int]) -> bytes:
            return _asked(folder, lambda client: client.get(name, *piece, self._mark), name)

        return b"".join(side_by_side(read, pieces))

    def __reduce__(self) -> tuple[Any, ...]:
        return partial(RemoteFile, root=self.root, mark=self._mark), (self.path,)


class RemoteStream(io.RawIOBase):
    """A file behind a URL from its start to its end; the next piece comes while one is read.

    Args:
        url: Its URL.

    Raises:
        RemoteError: See `list_files`; so raise reads.
    """

    def __init__(self, url: str) -> None:
        found = find_file(url)
        if found is None:
            raise RemoteError(f"{url}: not there any more")
        self._file = RemoteFile(url, root=url.rpartition("/")[0], mark=found.mark)
        self._size_bytes = found.size_bytes
        self._asked = 0
        self._ahead = self._next_piece()
        self._piece = memoryview(b"")

    def readable(self) -> bool:
        """It can be read."""
        return True

    def readinto(self, buffer: Any) -> int:
        """Read the next bytes; none at the end."""
        if not self._piece and self._ahead is not None:
            while not self._ahead.ready():
                self._ahead.wait(_TICK_S)
                still_wanted()
            piece, self._ahead = self._ahead.get(), self._next_piece()
            self._piece = memoryview(piece)
        taken = min(len(buffer), len(self._piece))
        buffer[:taken], self._piece = self._piece[:taken], self._piece[taken:]
        return taken

    def _next_piece(self) -> AsyncResult[bytes] | None:
        start, left = self._asked, self._size_bytes - self._asked
        if left <= 0:
            return None
        self._asked += min(left, _PIECE_BYTES)
        piece = start, min(left, _PIECE_BYTES)
        return _readers(os.getpid()).apply_async(self._file.read, piece)


def local_copy(url: str) -> str:
    """Copy a file, or all files below a URL, to this machine's cache; once for all its runs.

    A copy is of the content that is there now: it is made again when that has changed, and is
    removed when nobody has used it for two weeks.

    Args:
        url: A file, a folder, or a pattern with ``*`` or braces.

    Returns:
        Its path, or that of a folder with the files.

    Raises:
        ValueError: Nothing is there, or the URL carries a password.
        RemoteError: It cannot be read.
    """
    url = absolute_path(url)
    names = expand_braces(url)
    if len(names) == 1 and not glob.has_magic(url) and (found := find_file(url)) is not None:
        return str(_copied(url, found))
    root, files = find_named(names, endings=("",), where="copy")
    copies = {
        name: _copied(f"{root}/{name}", Found(name, *mark))
        for name, mark in files.items()
        if name and not any(other.startswith(f"{name}/") for other in files)  # a folder's own mark
    }
    sign = signature_of(url=url, files={name: str(path) for name, path in copies.items()})
    folder = machine_folder("remote") / sign / os.path.basename(root)
    folder.mkdir(parents=True, exist_ok=True)
    with locked(folder.parent / ".lock"):
        for name, path in copies.items():
            link = folder / name
            link.parent.mkdir(parents=True, exist_ok=True)
            if not link.exists():
                link.unlink(missing_ok=True)
                link.symlink_to(path)
    return str(folder)


def _copied(url: str, found: Found) -> Path:
    file = RemoteFile(url, root=url.rpartition("/")[0], mark=found.mark)

    def download(path: Path) -> None:
        with open(path, "wb") as copy:
            for start in range(0, found.size_bytes, _AT_ONCE_BYTES):
                size = min(_AT_ONCE_BYTES, found.size_bytes - start)
                copy.write(file.read(start, size))

    sign = signature_of(url=url, mark=found.mark, size=found.size_bytes)
    ending = Path(url).suffix
    path, _ = computed_once(
        f"copy-{sign}", ending, make=download, load=lambda path: path, what=f"copy of {url}"
    )
    return path


def side_by_side(read: Callable[[T], Any], each: Sequence[T]) -> list[Any]:
    """Call a function that waits for servers for several things at a time; results in order.

    What the calls asked for counts as asked for by this thread.
    """
    if len(each) < 2 or _local.reads_for_others:
        return [read(one) for one in each]

    def counted(one: T) -> tuple[Any, int, int]:
        mine = traffic()
        requests, size_bytes = mine.requests, mine.size_bytes
        result = read(one)
        return result, mine.requests - requests, mine.size_bytes - size_bytes

    results = []
    for result, requests, size_bytes in _readers(os.getpid()).map(counted, each, chunksize=1):
        results.append(result)
        traffic().requests += requests
        traffic().size_bytes += size_bytes
    return results


@cache
def _readers(pid: int) -> ThreadPool:
    """Threads of this process that wait for servers, and that it does not wait for to end."""

    def read_for_others() -> None:
        _local.reads_for_others = True

    pool = ThreadPool(_AT_ONCE, read_for_others)
    atexit.register(pool.terminate)
    return pool


def _split(url: str, root: str | None) -> tuple[str, str]:
    """Split a file's URL into that of the data set, which has a client, and a name below it."""
    if root is not None and url.startswith(f"{root}/"):
        folder, name = root, url[len(root) + 1 :]
    else:
        folder, _, name = url.rpartition("/")
    return folder, unquote(name) if url.startswith("http") else name


def _asked(url: str, ask: Callable[[_Client], T], name: str = "") -> T:
    """Ask the client of a URL; passing trouble is met with more tries, some seconds apart.

    Raises:
        MissingFile: The file `name` below it is not there.
        RemoteError: Anything else.
    """
    where = f"{url}/{name}" if name else url
    pauses_s, give_up = iter(_PAUSES_S), time.monotonic() + _GIVE_UP_S
    while True:
        try:
            traffic().requests += 1
            answer = ask(_client(url, os.getpid()))
            if isinstance(answer, bytes):
                traffic().size_bytes += len(answer)
            return answer
        except (RemoteError, MissingFile, MemoryError, TypeError, AttributeError):
            raise  # said already, or none of the server's
        except Exception as error:
            passing, what = _explained(error)
            if what is None:
                raise MissingFile(f"not there: {where}") from error
            pause_s = next(pauses_s, None) if passing else None
            if pause_s is None or time.monotonic() > give_up:
                tries = ", after several tries" if passing else ""
                raise RemoteError(f"{where}: {what}{tries}") from error
            time.sleep(pause_s)


_CHANGED = "its content was changed since it was looked at; start again"
_REMEDIES = {
    "NoSuchBucket": "there is no such bucket; look at its name, and at AWS_ENDPOINT_URL",
    "PermanentRedirect": "the bucket is in another region; set AWS_REGION to it",
    "AuthorizationHeaderMalformed": "the bucket is in another region; set AWS_REGION to it",
    "ExpiredToken": "the credentials have expired; renew them and go on with trainer.resume=auto",
    "PreconditionError": _CHANGED,
}


def _explained(error: Exception) -> tuple[bool, str | None]:
    """Say whether an error of a client may pass, and what it is; None: there is no such file."""
    kind, said = type(error).__name__, str(error).partition("\n\nDebug source")[0]
    code, status = (found[1] if (found := p.search(said)) else "" for p in (_CODE, _STATUS))
    if remedy := next((text for mark, text in _REMEDIES.items() if mark in (code, kind)), None):
        return False, remedy
    if "redirect without LOCATION" in said:
        return False, _REMEDIES["PermanentRedirect"]
    if isinstance(error, FileNotFoundError):
        return False, None
    denied = kind in ("PermissionDeniedError", "UnauthenticatedError") or status in ("401", "403")
    if denied or isinstance(error, PermissionError):
        return False, (
            "access is denied; give credentials by the environment, or, where the bucket is "
            "public, set AWS_SKIP_SIGNATURE=true (docs/remote.md)"
        )
    if isinstance(error, ImportError):
        return False, f"needs a library: {_line(error)}"
    if status[:1] == "4" and status not in ("408", "429"):
        return False, f"the server refuses it: {_line(said)}"
    return True, _line(said) or kind


def _line(said: object) -> str:
    """Tell what a library said, without the address that it asked, which may be signed."""
    text = _NOISE.sub(" ", str(said))
    if "error sending request" in text:
        return "the server does not answer; look at the network, and at AWS_ENDPOINT_URL if set"
    return " ".join(text.split()).strip(" -:")[:300]


_was_used = False


def _forbid_in_fork() -> None:
    global _client
    if _was_used:
        _client = _refuse_in_fork


os.register_at_fork(after_in_child=_forbid_in_fork)


def _refuse_in_fork(url: str, pid: int) -> _Client:
    raise RemoteError(
        f"{url}: this process was forked from one that had read from there, whose connections it "
        f"cannot use; type loader.multiprocessing_context=forkserver"
    )


@cache
def _open_client(url: str, pid: int) -> _Client:
    """Make the client of a URL, one for each process."""
    global _was_used
    _was_used = True
    scheme = url.partition(":")[0].lower()
    needed = "obstore" if scheme in _OBSTORE else "fsspec"
    if importlib.util.find_spec(needed) is None:
        raise RemoteError(
            f"{url}: the package {needed} is missing (the extra remote); run: pip install {needed}"
        )
    return _ObjectStore(url, scheme) if scheme in _OBSTORE else _FileSystem(url)


_client: Callable[[str, int], _Client] = _open_client


class _ObjectStore:
    """The files below a URL of an object store or a web server."""

    def __init__(self, url: str, scheme: str) -> None:
        from obstore.store import HTTPStore, from_url

        options: dict[str, Any] = {
            "client_options": {
                "allow_http": True,  # of an endpoint that the user names so
                "connect_timeout": timedelta(seconds=_CONNECT_S),
                "read_timeout": timedelta(seconds=_ANSWER_S),  # from one piece to the next
                "timeout": timedelta(hours=1),
                "pool_max_idle_per_host": str(_AT_ONCE),
            },
            "retry_config": {"max_retries": 2, "retry_timeout": timedelta(seconds=_RETRY_S)},
        }
        if scheme.startswith("s3") and (provider := _boto3_credentials()) is not None:
            options["credential_provider"] = provider
        self._url = url
        make = HTTPStore.from_url if scheme.startswith("http") else from_url
        self._store = make(url, **options)

    def files(self) -> Iterator[Found]:
        import obstore

        for chunk in obstore.list(self._store):
            yield from map(_found, chunk)

    def folder(self) -> tuple[list[str], list[str]]:
        import obstore

        found = obstore.list_with_delimiter(self._store)
        folders = [path.rstrip("/").rpartition("/")[2] for path in found["common_prefixes"]]
        return folders, [each["path"] for each in found["objects"]]

    def head(self, name: str) -> Found:
        import obstore

        return _found(obstore.head(self._store, name))

    def get(self, name: str, start: int, stop: int, mark: str | None) -> bytes:
        import obstore

        options: Any = {"range": (start, stop)}
        if mark is not None and mark.startswith('"'):
            options["if_match"] = mark
        try:
            answer = obstore.get(self._store, name, options=options)
        except obstore.exceptions.GenericError as error:
            if (status := _STATUS.search(str(error))) is not None and status[1] == "416":
                return b""  # it ends before that place
            raise
        content, found = bytes(answer.bytes()), _found(answer.meta)
        # Servers there are that pay no heed to what they are asked.
        if mark is not None and found.mark != mark:
            raise RemoteError(f"{self._url}/{name}: {_CHANGED}")
        if len(content) != (wanted := min(stop, found.size_bytes) - start):
            raise OSError(errno.EIO, f"{len(content):,} of {wanted:,} bytes were sent")
        return content


def _found(each: Any) -> Found:
    mark = each["e_tag"] or str(each["last_modified"])
    if each["e_tag"] and not mark.endswith('"'):  # Azure's listings have them without quotes
        mark = f'"{mark}"'
    return Found(each["path"], each["size"], mark)


def _boto3_credentials() -> Any:
    """What boto3 finds beside the environment: profiles, single sign-on; None: nothing."""
    if "AWS_ACCESS_KEY_ID" in os.environ or importlib.util.find_spec("boto3") is None:
        return None
    import boto3
    from obstore.auth.boto3 import Boto3CredentialProvider

    session = boto3.Session()
    return Boto3CredentialProvider(session) if session.get_credentials() is not None else None


class _FileSystem:
    """The files below a URL that fsspec knows."""

    def __init__(self, url: str) -> None:
        from fsspec.core import url_to_fs

        try:
            self._fs, self._root = url_to_fs(url)
        except ValueError as error:
            raise RemoteError(f"{url}: {error}; expected s3, gs, az, https or hf") from None
        self._root = self._root.rstrip("/")
        self._known: dict[str, Found] = {}

    def files(self) -> Iterator[Found]:
        self._fs.invalidate_cache()
        for path, info in self._fs.find(self._root, detail=True).items():
            yield self._found(path, info)

    def folder(self) -> tuple[list[str], list[str]]:
        self._fs.invalidate_cache()
        try:
            entries = self._fs.ls(self._root, detail=True)
        except FileNotFoundError:
            return [], []
        kinds: dict[str, list[str]] = {"directory": [], "file": []}
        for entry in entries:
            kinds[entry["type"]].append(entry["name"].rstrip("/").rpartition("/")[2])
        return kinds["directory"], kinds["file"]

    def head(self, name: str) -> Found:
        path = f"{self._root}/{name}"
        info = self._fs.info(path)
        if info["type"] != "file":
            raise FileNotFoundError(errno.ENOENT, "a folder", path)
        return self._found(path, info)

    def get(self, name: str, start: int, stop: int, mark: str | None) -> bytes:
        found = self._known.get(name) or self.head(name)
        if mark is not None and found.mark != mark:
            raise RemoteError(f"{self._root}/{name}: {_CHANGED}")
        content = bytes(self._fs.cat_file(f"{self._root}/{name}", start, stop))
        if len(content) != (wanted := max(min(stop, found.size_bytes) - start, 0)):
            raise OSError(errno.EIO, f"{len(content):,} of {wanted:,} bytes were sent")
        return content

    def _found(self, path: str, info: Any) -> Found:
        names = ("ETag", "etag", "blob_id", "LastModified", "mtime", "created")
        marks = (info.get(name) for name in names)
        mark = next((str(mark) for mark in marks if mark is not None), str(info["size"]))
        name = path[len(self._root) + 1 :]
        self._known[name] = Found(name, info["size"], mark)
        return self._known[name]
