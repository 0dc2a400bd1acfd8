"""Records kept on a disk of this machine, from run to run, in an SQLite file for each data set."""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import logging
import os
import sqlite3
import weakref
import zlib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Literal, TypeVar

from penstock.core.contracts import StorageCapabilities, capabilities_of
from penstock.core.files import is_at, machine_folder
from penstock.core.locks import ForkGate
from penstock.core.record_codec import Entry
from penstock.core.registry import register
from penstock.datasets.caches.cached_storage import CachedStorage, WholeImages
from penstock.datasets.caches.limits import parse_bytes
from penstock.datasets.records.index import Index

if TYPE_CHECKING:
    from penstock.core.contracts import Decoder, Storage

_log = logging.getLogger(__name__)
T = TypeVar("T")

_FORMAT = 2
_LEAST_BYTES = 1_000_000
_PAGE_BYTES = 1 << 14
_BUSY_S = 2.0
_TRANSACTION_BYTES = 1 << 21
_ENDING, _LOG_ENDING, _LOCK_ENDING = ".sqlite", ".sqlite-wal", ".sqlite.lock"
_TABLE = """CREATE TABLE IF NOT EXISTS entries
(record INTEGER PRIMARY KEY, checksum INTEGER, payload BLOB)"""
_BUSY = (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED)
# No such table, too: the file is empty. Of other trouble, a new file would have as much.
_DAMAGED = (
    sqlite3.SQLITE_CORRUPT,
    sqlite3.SQLITE_NOTADB,
    sqlite3.SQLITE_ERROR,
    sqlite3.SQLITE_IOERR_SHORT_READ,
)
_FORKS = ForkGate(most_s=10)
_stores: weakref.WeakSet[DiskStore] = weakref.WeakSet()
# Connections that a child inherits: never used, and never closed, which would touch the file.
_INHERITED: list[Any] = []


def _inherit() -> None:
    for store in _stores:
        _INHERITED.append(store.idle)
        store.idle = []


os.register_at_fork(after_in_child=_inherit)


@register("cache", "disk")
def open_disk_cache(
    storage: Storage,
    *,
    decode: Decoder | None = None,
    keys: Mapping[str, str | None] | None = None,
    path: str | None = None,
    max_bytes: int | str = "50GB",
    what: Literal["encoded", "decoded"] = "encoded",
) -> Storage:
    """Records on a local disk, with checksums, for data that is slow to read.

    The cache of a data set is used again by later runs, and by others at the same time. A data
    set is known by its fingerprint, its name and path, and what its index notes of its files'
    times; files that were overwritten in place by others of the same size and name are not
    noticed: empty the folder then. Once the folder is full, caches of other data that no run
    uses are deleted, those first that were used longest ago.

    Args:
        storage: What is read.
        decode: The data set's decoder.
        keys: The data set's renaming of fields.
        path: A folder; null: ``records`` in the user's cache folder.
        max_bytes: Of all caches in the folder together: 50GB, 500MB.
        what: ``encoded`` keeps records as they are read, ``decoded`` the pixels of whole images.

    Raises:
        ValueError: A value is wrong, or the folder cannot be used.
    """
    if what not in ("encoded", "decoded"):
        raise ValueError(f"dataset.cache.what: {what!r} given, expected encoded or decoded")
    prepare = WholeImages(decode, keys) if what == "decoded" else None
    size_bytes = parse_bytes(max_bytes)
    if size_bytes < _LEAST_BYTES:
        raise ValueError(
            f"dataset.cache.max_bytes: {max_bytes!r} given, but a cache on disk takes "
            f"{_LEAST_BYTES:,} bytes at least; allow more"
        )
    folder = Path(path).expanduser().absolute() if path is not None else machine_folder("records")
    store = DiskStore(folder, name=_name(storage, prepare), max_bytes=size_bytes)
    return CachedStorage(storage, store, prepare=prepare)


def _name(storage: Storage, prepare: WholeImages | None) -> str:
    """A hash of everything that the content depends on."""
    recipe = [
        _FORMAT,
        storage.fingerprint(),
        str(storage),
        len(storage),
        _notes(storage),
        prepare.recipe if prepare is not None else None,
    ]
    text = json.dumps(recipe, sort_keys=True, default=os.fspath)
    return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()


def _notes(storage: Storage | None) -> list[Any]:
    """Collect what the indexes of a storage and of what it wraps note, such as times of files."""
    notes = []
    while storage is not None:
        notes.append(storage.index.metadata if isinstance(storage.index, Index) else None)
        storage = capabilities_of(storage, StorageCapabilities).wraps
    return notes


class DiskStore:
    """Entries of a data set in an SQLite file with a write-ahead log, for several processes.

    Every entry has a checksum, over its record's number too. A file that SQLite finds damaged is
    deleted, and the process goes on without a cache. Nothing is evicted from it: see
    `datasets.caches.ram.KeepStore`.

    Args:
        folder: Where it lies; made if it is not there.
        name: Names its file.
        max_bytes: Of all caches in the folder.

    Attributes:
        damaged: Entries that this process found to be damaged, and dropped.
        idle: Connections that no thread uses.
        wants_more: Whether another entry may be admitted.

    Raises:
        ValueError: The folder cannot be used.
    """

    def __init__(self, folder: Path, *, name: str, max_bytes: int) -> None:
        self.path = folder / f"{name}{_ENDING}"
        self._max_bytes = max_bytes
        self.damaged = 0
        self.wants_more = True
        self.idle: list[sqlite3.Connection] = []
        self._is_gone = False
        _stores.add(self)
        try:
            folder.mkdir(parents=True, exist_ok=True)
            self._in_use: IO[bytes] | None = _held(self.path.with_suffix(_LOCK_ENDING))
        except OSError as error:
            raise ValueError(
                f"dataset.cache.path: {folder} cannot be written or locked ({error.strerror}); "
                f"give a folder on a disk of this machine"
            ) from error

    def close(self) -> None:
        """Close the file, which others may remove then; it is opened again when it is needed."""
        while self.idle:
            self.idle.pop().close()
        if self._in_use is not None:
            self._in_use.close()
            self._in_use = None

    def get_all(self, indices: Sequence[int]) -> list[bytes | None]:
        """The entries of records; None where there is none."""

        def read(connection: sqlite3.Connection) -> list[bytes | None]:
            entries: list[bytes | None] = []
            for index in indices:
                row = connection.execute(
                    "SELECT checksum, payload FROM entries WHERE record = ?", (index,)
                ).fetchone()
                entry = None
                if row is not None:
                    checksum, entry = row
                    if type(entry) is not bytes or _checksum(index, entry) != checksum:
                        entry = None
                        connection.execute("DELETE FROM entries WHERE record = ?", (index,))
                        self._count_damage(f"a damaged entry (record {index}) was dropped")
                entries.append(entry)
            return entries

        return self._run(read) or [None] * len(indices)

    def put_all(self, entries: Sequence[tuple[int, Entry]]) -> None:
        """Keep entries, as far as there is room, several in a transaction."""
        rows: list[tuple[int, int, bytes]] = []
        size_bytes = 0

        def write(connection: sqlite3.Connection) -> None:
            connection.execute("BEGIN IMMEDIATE")
            try:
                if self.wants_more and self._has_room(size_bytes):
                    connection.executemany("INSERT OR IGNORE INTO entries VALUES (?, ?, ?)", rows)
                connection.execute("COMMIT")
            except sqlite3.Error:
                if connection.in_transaction:
                    connection.execute("ROLLBACK")
                raise

        at_once = min(_TRANSACTION_BYTES, self._max_bytes // 32)
        for number, (index, entry) in enumerate(entries, 1):
            payload = b"".join(entry.parts)
            rows.append((index, _checksum(index, payload), payload))
            size_bytes += entry.size_bytes
            if size_bytes >= at_once or number == len(entries):
                self._run(write)
                rows, size_bytes = [], 0

    def _run(self, work: Callable[[sqlite3.Connection], T]) -> T | None:
        """Work with a connection that no other thread uses; None where the file fails."""
        if self._is_gone:
            return None
        connection = None
        with _FORKS.kept_off():
            try:
                connection = self._connection()
                result = work(connection)
            except (sqlite3.Error, OSError) as error:
                if connection is not None:
                    connection.close()
                self._handle(error)
                return None
            self.idle.append(connection)
        return result

    def _connection(self) -> sqlite3.Connection:
        with contextlib.suppress(IndexError):  # none is idle
            return self.idle.pop()
        if self._in_use is None or not self.path.parent.exists():
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self._in_use = _held(self.path.with_suffix(_LOCK_ENDING))
        return _connect(self.path, log_bytes=min(self._max_bytes // 64, 1 << 24))

    def _handle(self, error: Exception) -> None:
        """Go on without the file, or with no more in it, as an error demands."""
        # The lower byte is the primary code (sqlite.org, Result and Error Codes, 2).
        code = getattr(error, "sqlite_errorcode", sqlite3.SQLITE_CORRUPT)
        if code & 0xFF in _BUSY:
            return  # another process writes for long: a miss, and no more
        if isinstance(error, sqlite3.Error) and {code, code & 0xFF} & {*_DAMAGED}:
            self._is_gone, self.wants_more = True, False
            self._count_damage(f"{self.path.name} is damaged ({error}) and deleted")
            with contextlib.suppress(OSError):
                _remove(self.path)
        elif self.wants_more:
            self.wants_more = False
            _log.warning(
                "cache %s: nothing more is admitted (%s); what it holds is still used",
                self.path.parent, getattr(error, "strerror", error),
            )  # fmt: skip

    def _count_damage(self, what: str) -> None:
        self.damaged += 1
        if self.damaged == 1:
            _log.warning(
                "cache %s: %s; what it held is read from the data; other damage is only counted",
                self.path.parent, what,
            )  # fmt: skip

    def _has_room(self, size_bytes: int) -> bool:
        """Whether so much more can be written; caches that nobody uses make room."""
        while True:
            # What is in a log comes into its database too, before the log is begun anew.
            total = sum(
                _size(path) * (2 if path.name.endswith(_LOG_ENDING) else 1)
                for path in self.path.parent.glob(f"*{_ENDING}*")
            )
            if total + 2 * size_bytes + 4 * _PAGE_BYTES <= self._max_bytes:
                return True
            if not self._remove_oldest():
                self.wants_more = False
                return False

    def _remove_oldest(self) -> bool:
        """Remove the cache that was opened longest ago, of those that no process has open."""
        for lock in sorted(self.path.parent.glob(f"*{_LOCK_ENDING}"), key=_opened):
            with contextlib.suppress(OSError), open(lock, "rb") as file:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                _remove(lock.with_suffix(""))
                lock.unlink()
                return True
        return False

    def __reduce__(self) -> tuple[Any, ...]:
        return _opened_again, (self.path.parent, self.path.stem, self._max_bytes)


def _connect(path: Path, *, log_bytes: int) -> sqlite3.Connection:
    connection = sqlite3.connect(
        path, timeout=_BUSY_S, isolation_level=None, check_same_thread=False
    )
    for statement in (
        f"PRAGMA page_size = {_PAGE_BYTES}",
        "PRAGMA journal_mode = WAL",
        "PRAGMA synchronous = OFF",  # damage is found, and all of it can be had again
        f"PRAGMA wal_autocheckpoint = {max(1, log_bytes // _PAGE_BYTES)}",
        f"PRAGMA journal_size_limit = {log_bytes}",
        _TABLE,
    ):
        connection.execute(statement).fetchall()
    return connection


def _opened_again(folder: Path, name: str, max_bytes: int) -> DiskStore:
    return DiskStore(folder, name=name, max_bytes=max_bytes)


def _held(path: Path) -> IO[bytes]:
    """A lock that says that a cache is in use, and since when."""
    while True:
        file = open(path, "ab")
        try:
            fcntl.flock(file, fcntl.LOCK_SH)
            os.utime(path)
            if is_at(path, file.fileno()):
                return file
        except FileNotFoundError:  # removed by another process between the two lines
            pass
        except BaseException:
            file.close()
            raise
        file.close()


def _checksum(index: int, payload: bytes) -> int:
    return zlib.crc32(payload, index & 0xFFFFFFFF)


def _remove(path: Path) -> None:
    """Remove a database with its log, the log first: it must not be taken for another one's."""
    for ending in ("-wal", "-shm", ""):
        path.with_name(path.name + ending).unlink(missing_ok=True)


def _size(path: Path) -> int:
    with contextlib.suppress(FileNotFoundError):
        return path.stat().st_size
    return 0


def _opened(path: Path) -> int:
    with contextlib.suppress(FileNotFoundError):
        return path.stat().st_mtime_ns
    return 0
