"""Open SQLite files to read them, and nothing else: connections that cannot write, and that end.

A file may be damaged, or made by a stranger: an authorizer allows reading alone, a query that
computes without end is stopped, and no value may be larger than the file.
"""

from __future__ import annotations

import contextlib
import errno
import os
import sqlite3
import time
from collections.abc import Iterator
from typing import Any
from urllib.parse import quote

from penstock.core.locks import ForkGate

_MAGIC = b"SQLite format 3\0"
_INSTRUCTIONS = 100_000  # between two looks at the clock
_BUSY_S = 5.0
# What a child inherits from a fork: never used, and never closed, which would touch the file.
_INHERITED: list[Any] = []
_HEADERS: dict[tuple[int, int, int], int] = {}
_FORKS = ForkGate(most_s=10)
# Columns of a table, and what SQLAlchemy asks of a connection.
_PRAGMAS = ("table_info", "table_xinfo", "database_list", "read_uncommitted")


class DamagedRows(Exception):
    """Rows that a database or its driver cannot give; the message is the cause."""


class BadStatement(Exception):
    """What a database does not do: no such table, no right to read it; the message is the cause."""


def change_mark(path: str) -> list[int]:
    """Give size and time of the file, and of its write-ahead log, which change with its content."""
    found = os.stat(path)
    mark = [found.st_size, found.st_mtime_ns]
    with contextlib.suppress(FileNotFoundError):
        log = os.stat(f"{path}-wal")
        mark += [log.st_size, log.st_mtime_ns] if log.st_size else []
    return mark


def open_to_read(path: str, *, timeout_s: float) -> ReadingConnection:
    """Open a file, for one thread at a time.

    Args:
        path: The file, absolute.
        timeout_s: Processor time that a query may take for each piece of its rows.

    Raises:
        DamagedRows: It cannot be read, or is no SQLite file.
        OSError: Trouble with the disk, or another program that does not let go of the file.
    """
    # Opening a file with a write-ahead log makes files beside it, unless it is said that nobody
    # writes, which is so as long as there is no log.
    header = _header(path)
    if not header.startswith(_MAGIC):
        raise DamagedRows("it is no SQLite file")
    mark: list[int] | None = None
    if header[18:20] == b"\2\2" and not _has_content(f"{path}-wal"):
        mark = change_mark(path)
    immutable = "&immutable=1" if mark is not None else ""
    with _explained(path), _FORKS.kept_off():
        connection = sqlite3.connect(
            f"file:{quote(path)}?mode=ro{immutable}",
            uri=True,
            timeout=_BUSY_S,
            isolation_level=None,
            check_same_thread=False,
            factory=ReadingConnection,
        )
        connection.prepare(path, mark, timeout_s)
    return connection


class ReadingConnection(sqlite3.Connection):
    """A connection that reads, see `open_to_read`; its cursors raise what that raises.

    They raise `BadStatement` for what is no query, or would do more than read, and a
    `TimeoutError` for one that computes for too long.
    """

    _path = ""
    _pid = 0
    _deadline_s = 0.0

    def prepare(self, path: str, mark: list[int] | None, timeout_s: float) -> None:
        """Allow reading alone, of a file that nobody writes to while it has this `mark`."""
        self._path, self._mark, self._timeout_s = path, mark, timeout_s
        self._pid = os.getpid()
        self.text_factory = bytes.decode
        size = sum(change_mark(path)[::2])
        self.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, min(max(size, 1 << 20), 1_000_000_000))
        self.setlimit(sqlite3.SQLITE_LIMIT_ATTACHED, 0)
        self.set_progress_handler(self._is_late, _INSTRUCTIONS)
        self.limit()
        # A map of a file that becomes shorter would end the process.
        for pragma in ("trusted_schema=OFF", "cell_size_check=ON", "mmap_size=0", "query_only=ON"):
            super().cursor().execute(f"PRAGMA {pragma}")
        self.set_authorizer(_authorize)

    def cursor(self, factory: Any = None) -> Any:
        """Make a cursor; another factory than ours there is none."""
        return super().cursor(_ReadingCursor)

    @property
    def is_current(self) -> bool:
        """Whether the file is still read in the way that it must be."""
        return self._mark is None or self._mark == change_mark(self._path)

    def limit(self) -> None:
        """Let what comes next take its time."""
        self._deadline_s = time.thread_time() + self._timeout_s

    @contextlib.contextmanager
    def at_work(self) -> Iterator[None]:
        """Let the library work: within its time, with forks kept off, and errors explained."""
        self.limit()
        with _explained(self._path), _FORKS.kept_off():
            yield
        if not self.is_current:  # rows may be of two states
            raise OSError(errno.EBUSY, "it was written to while it was read", self._path)

    def close(self) -> None:
        """Close it in the process that opened it; in others it is never closed."""
        if self._pid == os.getpid():
            with _FORKS.kept_off():
                super().close()

    def _is_late(self) -> bool:
        return time.thread_time() > self._deadline_s

    def __del__(self) -> None:
        if self._pid == os.getpid():
            self.close()
        elif self._pid:
            _INHERITED.append(self)


class _ReadingCursor(sqlite3.Cursor):
    """A cursor of a `ReadingConnection`."""

    def execute(self, *given: Any) -> Any:
        with self.connection.at_work():  # type: ignore[attr-defined]
            return super().execute(*given)

    def fetchmany(self, size: int | None = 1) -> list[Any]:
        with self.connection.at_work():  # type: ignore[attr-defined]
            return super().fetchmany(size)

    def fetchall(self) -> list[Any]:
        with self.connection.at_work():  # type: ignore[attr-defined]
            return super().fetchall()

    def fetchone(self) -> Any:
        with self.connection.at_work():  # type: ignore[attr-defined]
            return super().fetchone()

    def close(self) -> None:
        with _FORKS.kept_off():
            super().close()


def _authorize(
    action: int, first: str | None, second: str | None, *_: str | None
) -> int:  # pragma: no cover - called by the library
    if action in (sqlite3.SQLITE_SELECT, sqlite3.SQLITE_READ, sqlite3.SQLITE_RECURSIVE):
        return sqlite3.SQLITE_OK
    if action == sqlite3.SQLITE_FUNCTION and (second or "").lower() != "load_extension":
        return sqlite3.SQLITE_OK
    if action == sqlite3.SQLITE_PRAGMA and (first or "").lower() in _PRAGMAS:
        return sqlite3.SQLITE_OK
    return sqlite3.SQLITE_DENY


def _header(path: str) -> bytes:
    """Read the first bytes of a file by a descriptor that stays open.

    Closing any descriptor of a file gives up the locks that SQLite holds on it in this process, and
    a program could write amid a query.
    """
    found = os.stat(path)
    key = os.getpid(), found.st_dev, found.st_ino
    if key not in _HEADERS:
        _HEADERS[key] = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    return os.pread(_HEADERS[key], 20, 0)


def _has_content(path: str) -> bool:
    with contextlib.suppress(OSError):
        return os.path.getsize(path) > 0
    return False


@contextlib.contextmanager
def _explained(path: str) -> Iterator[None]:
    """Tell damage from a wrong query and from trouble that may pass."""
    try:
        yield
    except (sqlite3.Error, sqlite3.Warning) as error:
        code = getattr(error, "sqlite_errorcode", None)
        line = " ".join(str(error).split())[:300]
        primary = None if code is None else code & 0xFF
        if primary in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
            raise OSError(errno.EBUSY, f"another program holds it ({line})", path) from error
        if primary == sqlite3.SQLITE_IOERR:
            raise OSError(errno.EIO, line, path) from error
        if primary == sqlite3.SQLITE_INTERRUPT:
            raise OSError(errno.ETIMEDOUT, line, path) from error
        if primary == sqlite3.SQLITE_CANTOPEN:
            os.close(os.open(os.devnull, os.O_RDONLY))  # raises where no descriptors are left
        if primary in (sqlite3.SQLITE_READONLY, sqlite3.SQLITE_CANTOPEN):
            raise DamagedRows(
                f"{line}: a program that wrote to it has left a -journal or -wal file behind, "
                f"which only one that may write can take in; open it with sqlite3"
            ) from error
        if primary in (None, sqlite3.SQLITE_ERROR, sqlite3.SQLITE_AUTH, sqlite3.SQLITE_MISUSE):
            raise BadStatement(line) from error
        raise DamagedRows(f"cannot be read ({line})") from error
    except UnicodeDecodeError as error:
        raise DamagedRows("a text is no UTF-8") from error
