"""Query a database: URLs without passwords, deadlines, and retries after transient errors."""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import quote

from penstock.core.sample import RecordError
from penstock.datasets.files.passwords import MASK, masked

if TYPE_CHECKING:
    from sqlalchemy import URL, Connection, Select
    from sqlalchemy.exc import DBAPIError

T = TypeVar("T")

_PAUSES_S = (0.1, 0.5, 2.0, 5.0, 10.0)
_DRIVERS = {
    "postgres": "postgresql+psycopg",
    "postgresql": "postgresql+psycopg",
    "mariadb": "mariadb+pymysql",
    "mysql": "mysql+pymysql",
    "sqlite": "sqlite",
}
# Settings of connections, which detect a vanished host. A prepared statement is a single one.
_ALIVE = {"connect_timeout": 10, "keepalives_idle": 20, "tcp_user_timeout": 60_000}
_CONNECT = {
    "psycopg": {**_ALIVE, "prepare_threshold": 0},
    "pymysql": {"connect_timeout": 10, "read_timeout": 120},
}
# The first statements of a connection: read-only, with a time limit.
_SETTINGS = {
    "postgresql": ("SET default_transaction_read_only = on", "SET statement_timeout = {limit_ms}"),
    "mariadb": ("SET SESSION TRANSACTION READ ONLY", "SET SESSION max_statement_time = {limit_s}"),
    "mysql": ("SET SESSION TRANSACTION READ ONLY", "SET SESSION max_execution_time = {limit_ms}"),
    "sqlite": ("PRAGMA query_only = on", "PRAGMA cell_size_check = on"),
}
_SQLITE_REFUSED = 1  # such as a table that is missing


def parse_url(text: str) -> URL:
    """Parse the URL of a database."""
    try:
        from sqlalchemy import make_url
        from sqlalchemy.exc import ArgumentError
    except ImportError as error:
        raise ValueError(
            "sql: sqlalchemy is missing; run: pip install 'sqlalchemy>=2.0'"
        ) from error
    try:
        url = make_url(text)
        driver = _DRIVERS[url.drivername.partition("+")[0]]
        is_open = url.password not in (None, "", MASK) and masked(text) == text
        if is_open or (driver == "sqlite" and (url.query or not url.database)):
            raise ValueError("a password that messages would show, or no file")
    except (ArgumentError, KeyError, ValueError):
        raise ValueError(
            "sql: not the URL of a database (it is not shown: it may hold a password); expected "
            "postgresql://user@host/database, mariadb://, mysql:// or sqlite:////folder/file.db, "
            "with @ : / in a password as %40 %3A %2F"
        ) from None
    if driver == "sqlite":
        url = url.set(database=os.path.abspath(os.path.expanduser(str(url.database))))
    return url.set(drivername=driver)


def file_of(url: URL) -> str | None:
    """Return the absolute path of an SQLite file, or None for a server."""
    return url.database if url.drivername == "sqlite" else None


def shown(url: URL) -> str:
    """Format a URL without its password."""
    return masked(url.render_as_string())


class Server:
    """A database that threads read; a `patient` one retries after transient errors."""

    def __init__(self, url: URL, timeout_s: float, *, patient: bool) -> None:
        from sqlalchemy import create_engine

        self._url, self._timeout_s, self._patient = url, timeout_s, patient
        if (path := file_of(url)) is not None:
            url = url.set(database=f"file:{quote(path)}", query={"mode": "ro", "uri": "true"})
        driver = url.drivername.partition("+")[2]
        given = {n: v for n, v in _CONNECT.get(driver, {}).items() if n not in url.query}
        try:
            self._engine = create_engine(
                url,
                isolation_level="AUTOCOMMIT",
                pool_size=0,  # unlimited: a connection for each thread
                pool_reset_on_return=None,
                connect_args=given,
            )
        except ImportError as error:
            package = driver.replace("psycopg", "psycopg[binary]")
            raise ValueError(f"its driver is missing; run: pip install '{package}'") from error

    def close(self) -> None:
        """Close the connections."""
        self._engine.dispose()

    def rows(self, statement: Select[Any], **values: Any) -> list[tuple[Any, ...]]:
        """Read all rows of a statement; see `call`."""
        return self.call(lambda connection: list(map(tuple, connection.execute(statement, values))))

    def call(self, work: Callable[[Connection], T]) -> T:
        """Call a function with a connection; see `_fault` for its errors."""
        from sqlalchemy.exc import DBAPIError

        for pause_s in (*(_PAUSES_S if self._patient else ()), None):
            try:
                with self._engine.connect() as connection:
                    self._prepare(connection)
                    return work(connection)
            except DBAPIError as error:
                line = " ".join(str(error.orig).split())[:300]
                if self._url.password:
                    line = line.replace(str(self._url.password), MASK)
                if (fault := _fault(error)) is not OSError:
                    raise fault(line) from error
                if not self._patient:
                    raise ValueError(
                        f"{line}; check dataset.storage.url and the server; for a slow statement, "
                        f"add an index on the key, or raise dataset.storage.timeout_s"
                    ) from error
                if pause_s is None:
                    if (path := file_of(self._url)) is not None:
                        open(path, "rb").close()  # says why, such as too many open files
                    said = f"{line}, after several attempts; resume when the database is back"
                    raise OSError(errno.ECONNRESET, said, shown(self._url)) from error
            time.sleep(pause_s)
        raise AssertionError

    def _prepare(self, connection: Connection) -> None:
        if "prepared" not in connection.info:
            dialect: Any = connection.dialect
            name = "mariadb" if getattr(dialect, "is_mariadb", False) else dialect.name
            limits = {"limit_s": self._timeout_s, "limit_ms": round(self._timeout_s * 1000)}
            for statement in _SETTINGS[name]:
                connection.exec_driver_sql(statement.format(**limits))
            connection.info["prepared"] = True


def _fault(error: DBAPIError) -> type[Exception]:
    """Return RecordError for damaged rows, ValueError for a refused statement, else OSError."""
    from sqlalchemy.exc import DatabaseError, DataError, InternalError, OperationalError

    # SQLite reports damage by the general class, and invalid UTF-8 without a code.
    is_text = "Could not decode to UTF-8" in str(error.orig)
    if is_text or isinstance(error, DataError | InternalError) or type(error) is DatabaseError:
        return RecordError
    is_refused = getattr(error.orig, "sqlite_errorcode", None) == _SQLITE_REFUSED
    is_transient = isinstance(error, OperationalError) and not is_refused
    return OSError if is_transient or error.connection_invalidated else ValueError
