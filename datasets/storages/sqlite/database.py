"""Query SQLite files, and nothing else: connections that cannot write, and queries that end.

A file may be damaged, or made by a stranger: an authorizer allows reading alone, a query that
computes without end is stopped, and no value may be larger than the file.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterator, Sequence
from typing import Any
from urllib.parse import quote

from penstock.core.locks import ForkGate
from penstock.datasets.files.access import retried

_MAGIC = b"SQLite format 3\0"
_INSTRUCTIONS = 100_000  # between two looks at the clock
_BUSY_S = 5.0
_CHUNK_ROWS = 4096
# What a child inherits from a fork: never used, and never closed, which would touch the file.
_INHERITED: list[Any] = []
_FORKS = ForkGate(most_s=10)


class DamagedDatabase(Exception):
    """A database, or a part of it, that cannot be read; the message is the cause."""


class BadQuery(Exception):
    """A query that SQLite does not run, or may not run here; the message is the cause."""


class BadText(bytes):
    """A text that is no UTF-8."""


def change_mark(path: str) -> list[int]:
    """Give size and time of the file, and of its write-ahead log, which change with its content."""
    found = os.stat(path)
    mark = [found.st_size, found.st_mtime_ns]
    with contextlib.suppress(FileNotFoundError):
        log = os.stat(f"{path}-wal")
        mark += [log.st_size, log.st_mtime_ns] if log.st_size else []
    return mark


class Database:
    """A database that threads read from at the same time, each with a connection of its own.

    Connections are opened when they are needed; one that is not in use waits for the next thread. A
    forked process has to make a database of its own.

    Args:
        path: The file, absolute.
    """

    def __init__(self, path: str) -> None:
        self.path = path
        self._idle: list[_Connection] = []

    def rows(self, sql: str, parameters: Sequence[Any] = (), *, limit_s: float) -> list[Any]:
        """Read all rows of a query; see `iterate`."""
        root = os.path.dirname(self.path)
        return retried(
            lambda: [
                row for part in self.iterate(sql, parameters, limit_s=limit_s) for row in part
            ],
            path=self.path,
            root=root,
        )

    def iterate(
        self, sql: str, parameters: Sequence[Any] = (), *, limit_s: float
    ) -> Iterator[list[Any]]:
        """Read the rows of a query in lists of some thousand.

        Texts are str, or `BadText` where they are no UTF-8.

        Args:
            sql: One SELECT.
            parameters: What stands for its question marks; bytes in place of text may be anything.
            limit_s: How much processor time it may take.

        Raises:
            DamagedDatabase: It cannot be read, or takes too long.
            BadQuery: It is no query, or would do more than read.
            OSError: Trouble with the disk, or another program that does not let go of the file.
        """
        with self._connection() as connection, _explained(self.path):
            connection.limit(limit_s)
            with _FORKS.kept_off():
                cursor = connection.raw.execute(sql, parameters)
            try:
                while True:
                    with _FORKS.kept_off():
                        rows = cursor.fetchmany(_CHUNK_ROWS)
                    if not rows:
                        return
                    yield rows
            finally:
                with _FORKS.kept_off():
                    cursor.close()

    def columns(self, source: str) -> list[str]:
        """List the columns of what can stand behind FROM; raises as `rows` does."""

        def describe() -> list[str]:
            with self._connection() as connection, _explained(self.path), _FORKS.kept_off():
                connection.limit(10)
                sql = f"SELECT * FROM {source} LIMIT 0"
                with contextlib.closing(connection.raw.execute(sql)) as cursor:
                    return [column[0] for column in cursor.description]

        return retried(describe, path=self.path, root=os.path.dirname(self.path))

    @contextlib.contextmanager
    def _connection(self) -> Iterator[_Connection]:
        try:
            connection = self._idle.pop()
        except IndexError:
            connection = None
        if connection is None or not connection.is_current:
            with _explained(self.path), _FORKS.kept_off():
                connection = _Connection(self.path)
        yield connection  # one that fails is not used again
        self._idle.append(connection)


class _Connection:
    """One connection, for one thread at a time."""

    def __init__(self, path: str) -> None:
        import sqlite3

        self._path = path
        self._pid = os.getpid()
        self._deadline_s = 0.0
        # Opening a file with a write-ahead log makes files beside it, unless it is said that nobody
        # writes, which is so as long as there is no log.
        with open(path, "rb") as file:
            header = file.read(20)
        if not header.startswith(_MAGIC):
            raise DamagedDatabase("it is no SQLite file")
        self._mark: list[int] | None = None
        if header[18:20] == b"\2\2" and not _has_content(f"{path}-wal"):
            self._mark = change_mark(path)
        immutable = "&immutable=1" if self._mark is not None else ""
        self.raw = sqlite3.connect(
            f"file:{quote(path)}?mode=ro{immutable}",
            uri=True,
            timeout=_BUSY_S,
            isolation_level=None,
            check_same_thread=False,
        )
        self.raw.text_factory = _text
        size = sum(change_mark(path)[::2])
        self.raw.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, min(max(size, 1 << 20), 1_000_000_000))
        self.raw.setlimit(sqlite3.SQLITE_LIMIT_ATTACHED, 0)
        self.raw.set_progress_handler(self._is_late, _INSTRUCTIONS)
        self.limit(10)
        # A map of a file that becomes shorter would end the process.
        for pragma in ("trusted_schema=OFF", "cell_size_check=ON", "mmap_size=0", "query_only=ON"):
            self.raw.execute(f"PRAGMA {pragma}")
        self.raw.set_authorizer(_authorize)

    @property
    def is_current(self) -> bool:
        """Tell whether the file is still read in the way that it must be."""
        return self._mark is None or self._mark == change_mark(self._path)

    def limit(self, seconds: float) -> None:
        """Let this thread's queries take so much processor time from now on."""
        self._deadline_s = time.thread_time() + seconds

    def _is_late(self) -> bool:
        return time.thread_time() > self._deadline_s

    def __del__(self) -> None:
        raw = getattr(self, "raw", None)
        if raw is None:
            return
        if self._pid == os.getpid():
            with _FORKS.kept_off():
                raw.close()
        else:
            _INHERITED.append(raw)


def _text(value: bytes) -> str | BadText:
    try:
        return value.decode()
    except UnicodeDecodeError:
        return BadText(value)


def _authorize(
    action: int, first: str | None, second: str | None, *_: str | None
) -> int:  # pragma: no cover - called by the library
    import sqlite3

    if action in (sqlite3.SQLITE_SELECT, sqlite3.SQLITE_READ, sqlite3.SQLITE_RECURSIVE):
        return sqlite3.SQLITE_OK
    if action == sqlite3.SQLITE_FUNCTION and (second or "").lower() != "load_extension":
        return sqlite3.SQLITE_OK
    if action == sqlite3.SQLITE_PRAGMA and (first or "").lower() == "table_info":
        return sqlite3.SQLITE_OK
    return sqlite3.SQLITE_DENY


def _has_content(path: str) -> bool:
    with contextlib.suppress(OSError):
        return os.path.getsize(path) > 0
    return False


@contextlib.contextmanager
def _explained(path: str) -> Iterator[None]:
    """Tell damage from a wrong query and from trouble that may pass."""
    import errno
    import sqlite3

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
            raise DamagedDatabase(
                "reading it computes for too long, as damage can make it, and a view or query that "
                "never ends, which a LIMIT ends"
            ) from error
        if primary == sqlite3.SQLITE_CANTOPEN:
            open(path, "rb").close()  # it is said so too where there are no descriptors left
        if primary in (sqlite3.SQLITE_READONLY, sqlite3.SQLITE_CANTOPEN):
            raise DamagedDatabase(
                f"{line}: a program that wrote to it has left a -journal or -wal file behind, "
                f"which only one that may write can take in; open it with sqlite3"
            ) from error
        if primary in (None, sqlite3.SQLITE_ERROR, sqlite3.SQLITE_AUTH, sqlite3.SQLITE_MISUSE):
            raise BadQuery(line) from error
        raise DamagedDatabase(f"cannot be read ({line})") from error
    except UnicodeDecodeError as error:
        raise DamagedDatabase("cannot be read (a name in it is no UTF-8)") from error
