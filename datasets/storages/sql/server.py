"""Query a database: URLs without passwords, deadlines, and retries after transient errors."""

from __future__ import annotations

import contextlib
import errno
import os
import sqlite3
import time
from collections import Counter
from collections.abc import Callable, Iterator
from functools import cache
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import quote

from penstock.core.sample import RecordError
from penstock.datasets.files.passwords import MASK, masked

if TYPE_CHECKING:
    from sqlalchemy import URL, Connection, Select

T = TypeVar("T")

_PAUSES_S = (0.1, 0.5, 2.0, 5.0, 10.0)
# Default drivers of URLs, and the packages to install for them.
_DRIVERS = {"postgres": "postgresql+psycopg", "postgresql": "postgresql+psycopg",
            "mysql": "mysql+pymysql", "mariadb": "mariadb+pymysql",
            "sqlite": "sqlite"}  # fmt: skip
_INSTALL = {"psycopg": "'psycopg[binary]' (the extra postgresql)",
            "pymysql": "pymysql (the extra mariadb)"}  # fmt: skip
# Settings of connections, which detect a vanished host within two minutes.
_CONNECT: dict[str, dict[str, Any]] = {
    "psycopg": {"connect_timeout": 10, "keepalives_idle": 20, "keepalives_interval": 5,
                "keepalives_count": 4, "tcp_user_timeout": 60_000, "prepare_threshold": 0},
    "pymysql": {"connect_timeout": 10, "read_timeout": 120},
}  # fmt: skip
# Transient errors. SQLSTATE: class (two characters) or code; MySQL and MariaDB: numbers.
_PASSING_STATES = ("08", "25P", "40", "53", "58", "57P", "55P03")
_PASSING_NUMBERS = frozenset({1040, 1047, 1053, 1158, 1159, 1160, 1161, 1205, 1213, 1927, 2002,
                              2003, 2006, 2013, 2055, 4031})  # fmt: skip
_LATE = ("57014", 1317, 1969, 3024)
_SQLITE_TROUBLE = {sqlite3.SQLITE_BUSY: errno.EBUSY, sqlite3.SQLITE_LOCKED: errno.EBUSY,
                   sqlite3.SQLITE_IOERR: errno.EIO,
                   sqlite3.SQLITE_INTERRUPT: errno.ETIMEDOUT}  # fmt: skip
_BUSY_S = 5.0
_MOST_PAGES = 8  # length of the longest page, in first pages
_SQLITE_INSTRUCTIONS = 100_000  # between two checks of the deadline
_EXAMPLE = "postgresql://user@host/database"


def parse_url(text: str) -> URL:
    """Parse the URL of a server.

    Raises:
        ValueError: It is not supported, its password is masked, or SQLAlchemy is missing.
    """
    try:
        from sqlalchemy import make_url
        from sqlalchemy.exc import ArgumentError
    except ImportError as error:
        raise ValueError(
            "sql: the package sqlalchemy is missing (the extra sql); run: pip install "
            "'sqlalchemy>=2.0'"
        ) from error
    try:
        url = make_url(text)
        if url.password not in (None, "", MASK) and masked(text) == text:
            raise ValueError("it could not be kept out of messages")
    except (ArgumentError, ValueError):
        raise ValueError(
            f"sql: not the URL of a database (it is not shown: it may hold a password); "
            f"expected one such as {_EXAMPLE}, with @ : / in a password as %40 %3A %2F"
        ) from None
    if MASK in (url.password, *url.query.values()):
        raise ValueError(
            f"sql: {shown(url)}: its password was left out where it was written ({MASK}); "
            f"type the URL again: dataset.storage.url=..., or let the driver find it: docs/sql.md"
        )
    url = url.set(drivername=_DRIVERS.get(url.drivername, url.drivername))
    if url.drivername == _DRIVERS["sqlite"]:
        if url.query or url.database in (None, "", ":memory:"):
            raise ValueError(
                f"sql: {shown(url)}: expected sqlite:///file.db, or sqlite:////folder/file.db"
            )
        url = url.set(database=os.path.abspath(os.path.expanduser(str(url.database))))
    if url.drivername not in _DRIVERS.values():
        raise ValueError(
            f"sql: {shown(url)}: {url.drivername} is not read here; take postgresql://, "
            f"mariadb://, mysql:// or sqlite:///"
        )
    return url


def file_of(url: URL) -> str | None:
    """Return the absolute path of an SQLite file, or None for a server."""
    return url.database if url.drivername == _DRIVERS["sqlite"] else None


def shown(url: URL) -> str:
    """Format a URL without its password."""
    return masked(url.render_as_string())


class BadStatement(Exception):
    """A statement that the database refuses; the message is the cause."""


class Server:
    """A database read by the threads of a process; connections open on demand.

    Args:
        timeout_s: Maximum seconds of a statement.
        patient: Wait for an unreachable server, even if it was never reached.

    Attributes:
        place: Its URL, without a password.
        file: The file, if it is SQLite; None for a server.
    """

    def __init__(self, url: URL, *, timeout_s: float, patient: bool) -> None:
        from sqlalchemy import create_engine

        self.place = shown(url)
        self.file = file_of(url)
        self._password = str(url.password or "")
        self._timeout_s = timeout_s
        self._patient = patient
        self._reached = False
        driver = url.drivername.partition("+")[2]
        given = {n: v for n, v in _CONNECT.get(driver, {}).items() if n not in url.query}
        options: dict[str, Any] = {"connect_args": given}
        if self.file is not None:
            options = {"creator": lambda: _open_file(str(self.file))}
        try:
            self._engine = create_engine(
                url,
                isolation_level="AUTOCOMMIT",
                pool_size=0,  # unlimited: a connection for each thread
                pool_reset_on_return=None,
                **options,
            )
        except ImportError as error:
            raise BadStatement(
                f"its driver is missing; run: pip install {_INSTALL[driver]}"
            ) from error
        self._errors: Any = self._engine.dialect.loaded_dbapi

    def close(self) -> None:
        """Close the connections."""
        self._engine.dispose()

    def rows(self, statement: Select[Any], **values: Any) -> list[tuple[Any, ...]]:
        """Read all rows of a statement.

        Raises:
            RecordError: The database or its driver cannot return the rows.
            BadStatement: The database refuses the statement.
            OSError: A lost connection, a deadlock or the deadline persisted.
        """
        return self.call(lambda connection: list(map(tuple, connection.execute(statement, values))))

    def call(self, work: Callable[[Connection], T]) -> T:
        """Call a function with a connection; retry after transient errors. See `rows`."""
        pauses = iter(_PAUSES_S)
        while True:
            try:
                with self._connection() as connection:
                    return work(connection)
            except OSError as error:
                self._wait(pauses, error)

    def in_order(
        self, statement: Select[Any], key: Any, *, page_rows: int
    ) -> Iterator[list[tuple[Any, ...]]]:
        """Read rows by pages, in the order of the first column, `key`.

        A page begins at the last key of the page before, which other keys may equal by collation.
        Pages double in length, up to 8 times the first: without an index, each sorts the table.

        Raises:
            RecordError, BadStatement, OSError: See `rows`.
            ValueError: A key occurs twice.
        """
        ordered, before = statement.order_by(key).limit(page_rows), set[Any]()
        most_rows = _MOST_PAGES * page_rows
        while rows := self.rows(ordered):
            keys = [row[0] for row in rows]
            fresh = set(keys) - before
            if len(set(keys)) < len(keys) or (not fresh and len(rows) == page_rows):
                [(twice, _)] = Counter(keys).most_common(1)
                raise ValueError(
                    f"key {twice!r:.100} stands twice; take a column whose values differ"
                )
            yield [row for row in rows if row[0] in fresh]
            if len(rows) < page_rows:
                return
            before, page_rows = set(keys), min(2 * page_rows, most_rows)
            ordered = statement.where(key >= as_given(keys[-1])).order_by(key).limit(page_rows)

    @contextlib.contextmanager
    def _connection(self) -> Iterator[Connection]:
        from sqlalchemy.exc import DBAPIError

        mark = None
        try:
            with self._engine.connect() as connection:
                try:
                    driver: Any = connection.connection.driver_connection
                    if self.file is not None:
                        mark = change_mark(self.file)
                        if not driver.reads_as(mark):
                            connection.invalidate()  # and reopened
                            driver = connection.connection.driver_connection
                        driver.stop_after(self._timeout_s)
                    elif "prepared" not in connection.info:
                        for statement in self._settings(connection.dialect):
                            connection.exec_driver_sql(statement)
                        connection.commit()
                        connection.info["prepared"] = True
                    self._reached = True
                    yield connection
                    if self.file is not None and not driver.reads_as(change_mark(self.file)):
                        raise OSError(errno.EBUSY, "written to while it was read", self.place)
                except BaseException:  # read nothing more after an error
                    connection.invalidate()
                    raise
        except DBAPIError as error:
            raise self._explained(error.orig, lost=error.connection_invalidated) from error
        except self._errors.Error as error:  # of the driver, not wrapped by SQLAlchemy
            raise self._explained(error) from error
        except UnicodeDecodeError as error:
            raise RecordError("a text is no UTF-8") from error

    def _settings(self, dialect: Any) -> tuple[str, ...]:
        """Return the first statements of a connection: read-only, with a time limit."""
        limit_ms = round(self._timeout_s * 1000)
        if dialect.name == "postgresql":
            limit = f"SET statement_timeout = {limit_ms}"
            return "SET default_transaction_read_only = on", limit
        limit = f"max_execution_time = {limit_ms}"
        if dialect.is_mariadb:
            limit = f"max_statement_time = {self._timeout_s}"
        return "SET SESSION TRANSACTION READ ONLY", f"SET SESSION {limit}"

    def _explained(self, error: Any, *, lost: bool = False) -> Exception:
        """Convert an error: wrong rows, a wrong statement, or a transient error."""
        state = getattr(error, "sqlstate", None) or ""  # of psycopg
        number, said = [*error.args, None, None][:2]  # of pymysql
        line = " ".join(str(said or error).split())[:300]
        if self._password:
            line = line.replace(self._password, MASK)
        if self.file is not None:
            return self._explained_file(error, line)
        if state in _LATE or number in _LATE:
            return OSError(errno.ETIMEDOUT, line, self.place)
        kinds = self._errors
        unknown = not state and not isinstance(number, int)
        lost |= isinstance(error, kinds.InterfaceError)
        lost |= unknown and isinstance(error, kinds.OperationalError)
        if lost or state.startswith(_PASSING_STATES) or number in _PASSING_NUMBERS:
            return OSError(errno.ECONNRESET, line, self.place)
        if isinstance(error, kinds.DataError | kinds.InternalError):
            return RecordError(line)
        return BadStatement(line)

    def _explained_file(self, error: Any, line: str) -> Exception:
        code = getattr(error, "sqlite_errorcode", sqlite3.SQLITE_ERROR) & 0xFF
        if code in _SQLITE_TROUBLE:
            return OSError(_SQLITE_TROUBLE[code], line, self.place)
        if code == sqlite3.SQLITE_CANTOPEN:
            os.close(os.open(os.devnull, os.O_RDONLY))  # raises if no descriptors are left
        if code in (sqlite3.SQLITE_READONLY, sqlite3.SQLITE_CANTOPEN):
            return RecordError(
                f"{line}: a program left a -journal or -wal file beside it; open it with sqlite3"
            )
        if code in (sqlite3.SQLITE_ERROR, sqlite3.SQLITE_MISUSE):
            return BadStatement(line)
        return RecordError(f"cannot be read ({line})")

    def _wait(self, pauses: Iterator[float], error: OSError) -> None:
        """Pause before another attempt, or raise."""
        late = error.errno == errno.ETIMEDOUT
        if late and not self._patient:
            raise BadStatement(
                f"{error.strerror}: it computes for longer than {self._timeout_s:g} s; give a "
                f"query that ends, an index on the key, or raise dataset.storage.timeout_s"
            ) from error
        if not self._patient and not self._reached:
            runs = ", and that the server runs" if self.file is None else ""
            raise BadStatement(
                f"cannot be reached: {error.strerror}; check dataset.storage.url{runs}"
            ) from error
        # A statement that timed out is retried once.
        pause_s = next(iter([*pauses][-1:] if late else pauses), None)
        if pause_s is None:
            raise OSError(
                error.errno,
                f"{error.strerror}, after several attempts; the database has trouble, resume when "
                f"it is back",
                self.place,
            ) from error
        time.sleep(pause_s)


class _FileConnection(sqlite3.Connection):
    """A read-only connection to an SQLite file.

    Attributes:
        mark: State of the file when read without its write-ahead log; None: any state.
    """

    mark: list[int] | None = None
    _deadline_s = 0.0

    def reads_as(self, mark: list[int]) -> bool:
        """Return whether the connection may read the file in this state."""
        return self.mark in (None, mark)

    def stop_after(self, timeout_s: float) -> None:
        """Stop statements `timeout_s` seconds from now."""
        self._deadline_s = time.monotonic() + timeout_s

    def _is_late(self) -> bool:
        return time.monotonic() > self._deadline_s


def _open_file(path: str) -> _FileConnection:
    """Open an SQLite file read-only, without creating files beside it."""
    # Closing a descriptor would drop SQLite's locks on the file, so it stays open.
    found = os.stat(path)
    header = os.pread(_descriptor(path, found.st_dev, found.st_ino, os.getpid()), 20, 0)
    if not header.startswith(b"SQLite format 3\0"):
        raise RecordError("it is no SQLite file")
    # SQLite creates files beside a database with a write-ahead log unless it is opened as
    # immutable, which is right while the log is empty and the file keeps its mark.
    mark = change_mark(path)
    immutable = header[18:20] == b"\2\2" and len(mark) == 2
    connection = sqlite3.connect(
        f"file:{quote(path)}?mode=ro{'&immutable=1' * immutable}",
        uri=True,
        timeout=_BUSY_S,
        check_same_thread=False,
        factory=_FileConnection,
    )
    connection.mark = mark if immutable else None
    connection.text_factory = bytes.decode
    connection.execute("PRAGMA cell_size_check=ON")
    connection.stop_after(60)
    connection.set_progress_handler(connection._is_late, _SQLITE_INSTRUCTIONS)
    return connection


@cache
def _descriptor(path: str, device: int, inode: int, pid: int) -> int:
    return os.open(path, os.O_RDONLY | os.O_CLOEXEC)


def change_mark(path: str) -> list[int]:
    """Return size and time of an SQLite file, and of its write-ahead log if not empty."""
    found = os.stat(path)
    mark = [found.st_size, found.st_mtime_ns]
    with contextlib.suppress(FileNotFoundError):
        log = os.stat(f"{path}-wal")
        mark += [log.st_size, log.st_mtime_ns] if log.st_size else []
    return mark


def as_given(value: Any) -> Any:
    """Bind a value for the server to compare with a column of any type."""
    from sqlalchemy import bindparam
    from sqlalchemy.types import NULLTYPE

    return bindparam(None, value, type_=NULLTYPE)
