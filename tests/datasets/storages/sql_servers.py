"""Database servers on this machine, each with a database of the test, and a proxy that cuts."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest
import sqlalchemy as sql

from tests.tcp_proxy import TcpProxy

ADDRESSES = {
    "postgresql": os.environ.get("TEST_POSTGRESQL", "postgresql://root@127.0.0.1:5432/test"),
    "mariadb": os.environ.get("TEST_MARIADB", "mariadb://root@127.0.0.1:3306/test"),
}
_DRIVERS = {"postgresql": "postgresql+psycopg", "mariadb": "mariadb+pymysql"}
_TYPES = {"postgresql": {"BLOB": "bytea", "JSON": "jsonb"}, "mariadb": {"BLOB": "longblob"}}


@dataclass(frozen=True)
class Server:
    """A server, and a database of the test in it."""

    name: str
    url: str
    root: sql.Engine

    def put(self, *statements: str, rows: Any = (), table: str = "samples") -> None:
        """Run statements, in which BLOB is the server's type of bytes, and add rows to a table."""
        with self.root.begin() as connection:
            for statement in statements:
                for name, own in _TYPES[self.name].items():
                    statement = statement.replace(name, own)
                connection.exec_driver_sql(statement.replace("%", "%%"))
            if rows:
                marks = ", ".join(["%s"] * len(rows[0]))
                connection.exec_driver_sql(f"INSERT INTO {table} VALUES ({marks})", [*rows])

    def kill_others(self) -> int:
        """End every other connection to the database; return their number."""
        listed = {
            "postgresql": "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE "
            "datname = current_database() AND pid <> pg_backend_pid()",
            "mariadb": "SELECT id FROM information_schema.processlist WHERE db = database() AND "
            "id <> connection_id()",
        }
        with self.root.begin() as connection:
            found = connection.exec_driver_sql(listed[self.name]).fetchall()
            for (number,) in found if self.name == "mariadb" else ():
                with contextlib.suppress(sql.exc.OperationalError):  # it ended by itself
                    connection.exec_driver_sql(f"KILL {number}")
        return len(found)

    def through(self, port: int, password: str = "") -> str:
        """Return the URL with another port."""
        url = sql.make_url(self.url).set(host="127.0.0.1", port=port)
        return url.set(password=password or None).render_as_string(hide_password=False)


@contextlib.contextmanager
def running(name: str) -> Iterator[Server]:
    """Yield a server with a new database, or skip the test."""
    pytest.importorskip("sqlalchemy")
    address = sql.make_url(ADDRESSES[name]).set(drivername=_DRIVERS[name])
    above = sql.create_engine(address, isolation_level="AUTOCOMMIT", poolclass=sql.pool.NullPool)
    own = f"penstock_{os.getpid()}"
    try:
        with above.connect() as connection:
            connection.exec_driver_sql(f"CREATE DATABASE {own}")
    except (sql.exc.OperationalError, ImportError) as error:
        pytest.skip(f"no {name} at {address}: {' '.join(str(error).split())[:100]}")
    url = address.set(database=own)
    root = sql.create_engine(url, poolclass=sql.pool.NullPool)
    try:
        plain = url.set(drivername=name).render_as_string(hide_password=False)
        yield Server(name, plain, root)
    finally:
        with above.connect() as connection:
            force = " WITH (FORCE)" if name == "postgresql" else ""
            connection.exec_driver_sql(f"DROP DATABASE {own}{force}")


class Proxy(TcpProxy):
    """Stands between a client and a database."""

    def __init__(self, server: Server) -> None:
        url = sql.make_url(server.url)
        super().__init__((url.host, url.port))
