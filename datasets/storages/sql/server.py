"""Talk to a database server: addresses without passwords, deadlines, trouble that passes."""

from __future__ import annotations

import contextlib
import errno
import os
import time
from collections.abc import Callable, Collection, Iterator
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from penstock.datasets.files.passwords import MASK, masked
from penstock.datasets.files.sqlite_files import BadStatement, DamagedRows, open_to_read

if TYPE_CHECKING:
    from sqlalchemy import URL, Connection, Select

T = TypeVar("T")

_PAUSES_S = (0.1, 0.5, 2.0, 5.0, 10.0)
# The drivers that are known well enough, where a URL names none; and what is installed for them.
_DRIVERS = {"postgres": "postgresql+psycopg", "postgresql": "postgresql+psycopg",
            "mysql": "mysql+pymysql", "mariadb": "mariadb+pymysql",
            "sqlite": "sqlite"}  # fmt: skip
_INSTALL = {"psycopg": "'psycopg[binary]' (the extra postgresql)",
            "pymysql": "pymysql (the extra mariadb)"}  # fmt: skip
# That a host has vanished is noticed by those who ask for it; what is prepared is one statement.
_CONNECT: dict[str, dict[str, Any]] = {
    "psycopg": {"connect_timeout": 10, "keepalives_idle": 20, "keepalives_interval": 5,
                "keepalives_count": 4, "tcp_user_timeout": 60_000, "prepare_threshold": 0},
    "pymysql": {"connect_timeout": 10, "read_timeout": 120},
}  # fmt: skip
# SQLSTATE: by class (of two characters) or code; MySQL and MariaDB: error numbers.
_PASSING_STATES = ("08", "25P", "40", "53", "58", "57P", "55P03")
_PASSING_NUMBERS = frozenset({1040, 1047, 1053, 1158, 1159, 1160, 1161, 1205, 1213, 1927, 2002,
                              2003, 2006, 2013, 2055, 4031})  # fmt: skip
_LATE = ("57014", 1317, 1969, 3024)
_EXAMPLE = "postgresql://user@host/database"


def find_url(text: str) -> str:
    """Give a URL as it is; that of a variable of the environment for ``env:NAME``.

    Raises:
        ValueError: There is no such variable.
    """
    name = text.removeprefix("env:")
    if name == text:
        return text
    if name not in os.environ:
        raise ValueError(
            f"sql: the environment has no variable {name!r}; type export {name}={_EXAMPLE}"
        )
    return os.environ[name]


def parse_url(text: str) -> URL:
    """Parse the URL of a server.

    Raises:
        ValueError: It is none that is read here, its password was left out, or SQLAlchemy is
            missing.
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
    """Give the file of an SQLite database, absolute; None for a server."""
    return url.database if url.drivername == _DRIVERS["sqlite"] else None


def shown(url: URL) -> str:
    """Write a URL without its password."""
    return masked(url.render_as_string())


class Server:
    """A database that the threads of a process read from; connections open when they are needed.

    Args:
        url: Its URL.
        timeout_s: What a statement may take; in PostgreSQL and SQLite, a piece of its rows.
        patient: Wait for a server that cannot be reached, also where it never was.

    Attributes:
        place: Its URL, without a password.
        file: The file, if it is SQLite; None for a server.
    """

    def __init__(self, url: URL, *, timeout_s: float, patient: bool) -> None:
        from sqlalchemy import create_engine

        self.place = shown(url)
        self._password = str(url.password or "")
        self._timeout_s = timeout_s
        self._patient = patient
        self._reached = False
        driver = url.drivername.partition("+")[2]
        self.file = file_of(url)
        options: dict[str, Any]
        if self.file is not None:
            options = {"creator": partial(open_to_read, self.file, timeout_s=timeout_s)}
        else:
            given = {n: v for n, v in _CONNECT[driver].items() if n not in url.query}
            options = {"connect_args": given}
        try:
            self._engine = create_engine(
                url,
                isolation_level="AUTOCOMMIT",
                pool_size=0,  # of any size: a connection for each thread
                pool_reset_on_return=None,
                **options,
            )
        except ImportError as error:
            what = _INSTALL[driver]
            raise BadStatement(f"its driver is missing; run: pip install {what}") from error
        self._errors: Any = self._engine.dialect.loaded_dbapi

    def close(self) -> None:
        """Close the connections."""
        self._engine.dispose()

    def rows(self, statement: Select[Any], **values: Any) -> list[tuple[Any, ...]]:
        """Read all rows of a statement.

        Raises:
            DamagedRows, BadStatement: See there.
            OSError: Trouble that did not pass: the connection, a deadlock, the deadline.
        """
        return self.call(lambda connection: list(map(tuple, connection.execute(statement, values))))

    def call(self, work: Callable[[Connection], T]) -> T:
        """Do something with a connection, and again after trouble that may pass; see `rows`."""
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
        """Read the rows of a statement in the order of its first column, `key`, some at a time.

        They come through a cursor of the server's. After trouble that passes, reading goes on
        behind the rows that were given.

        Raises:
            DamagedRows, BadStatement, OSError: See `rows`.
            ValueError: A key stands twice.
        """
        pauses, ordered = iter(_PAUSES_S), statement.order_by(key)
        before: set[Any] = set()  # keys of the last two pages
        latest: set[Any] = set()
        while True:
            again = before | latest  # with those that the order takes for equal to the last one
            moved = False
            try:
                with self._connection() as connection:
                    if self.file is None:  # where a statement sees one state by itself
                        connection.execution_options(isolation_level="REPEATABLE READ")
                    connection.execution_options(stream_results=True, yield_per=page_rows)
                    result = connection.execute(ordered)  # held until nothing is read from it
                    for page in result.partitions():
                        if rows := [row for row in map(tuple, page) if row[0] not in again]:
                            keys = [row[0] for row in rows]
                            _refuse_twice(keys, before | latest)
                            moved, before, latest = True, latest, set(keys)
                            yield rows
                            ordered = statement.where(key >= as_given(keys[-1])).order_by(key)
                return
            except OSError as error:
                if moved:  # it may only have taken its time, as whoever takes the rows does
                    pauses = iter(_PAUSES_S)
                else:
                    self._wait(pauses, error)

    @contextlib.contextmanager
    def _connection(self) -> Iterator[Connection]:
        from sqlalchemy.exc import DBAPIError

        try:
            with self._engine.connect() as connection:
                driver: Any = connection.connection.driver_connection
                if self.file is not None and not driver.is_current:
                    connection.invalidate()  # and opened anew
                try:
                    if "prepared" not in connection.info:
                        for statement in self._settings(connection.dialect):
                            connection.exec_driver_sql(statement)
                        connection.commit()
                        connection.info["prepared"] = self._reached = True
                    yield connection
                except BaseException:  # nothing that is left half read is read on
                    if self._engine.driver == "pymysql" and driver._result is not None:
                        driver._result.unbuffered_active = False  # or closing reads all the rest
                    connection.invalidate()
                    raise
        except DBAPIError as error:
            raise self._explained(error.orig, lost=error.connection_invalidated) from error
        except self._errors.Error as error:  # of the driver, where nobody wraps it
            raise self._explained(error) from error
        except UnicodeDecodeError as error:
            raise DamagedRows("a text is no UTF-8") from error

    def _settings(self, dialect: Any) -> tuple[str, ...]:
        """List what a connection is told first: to read alone, and for how long."""
        if self.file is not None:
            return ()
        limit_ms = round(self._timeout_s * 1000)
        if dialect.name == "postgresql":
            limit = f"SET statement_timeout = {limit_ms}"
            return "SET default_transaction_read_only = on", limit
        limit = f"max_execution_time = {limit_ms}"
        if dialect.is_mariadb:
            limit = f"max_statement_time = {self._timeout_s}"
        return "SET SESSION TRANSACTION READ ONLY", f"SET SESSION {limit}"

    def _explained(self, error: Any, *, lost: bool = False) -> Exception:
        """Tell what is wrong with rows from a wrong statement and from trouble that may pass."""
        state = getattr(error, "sqlstate", None) or ""  # of psycopg
        number, said = [*error.args, None, None][:2]  # of pymysql
        line = " ".join(str(said or error).split())[:300]
        if self._password:
            line = line.replace(self._password, MASK)
        if state in _LATE or number in _LATE:
            return OSError(errno.ETIMEDOUT, line, self.place)
        kinds = self._errors
        unknown = not state and not isinstance(number, int)
        lost |= isinstance(error, kinds.InterfaceError)
        lost |= unknown and isinstance(error, kinds.OperationalError)
        if lost or state.startswith(_PASSING_STATES) or number in _PASSING_NUMBERS:
            return OSError(errno.ECONNRESET, line, self.place)
        if isinstance(error, kinds.DataError | kinds.InternalError):
            return DamagedRows(line)
        return BadStatement(line)

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
        # What took its time once is tried once more.
        pause_s = next(iter([*pauses][-1:] if late else pauses), None)
        if pause_s is None:
            raise OSError(
                error.errno,
                f"{error.strerror}, after several attempts; the database has trouble, resume when "
                f"it is back",
                self.place,
            ) from error
        time.sleep(pause_s)


def as_given(value: Any) -> Any:
    """A value as SQL that the server compares with a column of any type."""
    from sqlalchemy import bindparam
    from sqlalchemy.types import NULLTYPE

    return bindparam(None, value, type_=NULLTYPE)


def _refuse_twice(keys: list[Any], before: Collection[Any]) -> None:
    seen = set(before)
    for key in keys:
        if key in seen:
            raise ValueError(f"key {key!r} stands twice; take a column whose values differ")
        seen.add(key)
