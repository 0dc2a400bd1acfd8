"""Servers of databases that run here, with a database of one's own; what cuts connections."""

from __future__ import annotations

import contextlib
import os
import select
import socket
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest
import sqlalchemy as sql

ADDRESSES = {
    "postgresql": os.environ.get("TEST_POSTGRESQL", "postgresql://root@127.0.0.1:5432/test"),
    "mariadb": os.environ.get("TEST_MARIADB", "mariadb://root@127.0.0.1:3306/test"),
}
_DRIVERS = {"postgresql": "postgresql+psycopg", "mariadb": "mariadb+pymysql"}
_TYPES = {"postgresql": {"BLOB": "bytea", "JSON": "jsonb"}, "mariadb": {"BLOB": "longblob"}}


@dataclass(frozen=True)
class Server:
    """A server, and a database in it that is the test's own.

    Attributes:
        name: ``postgresql`` or ``mariadb``.
        url: The database's, without a driver.
        root: Connections that may do anything.
    """

    name: str
    url: str
    root: sql.Engine

    def put(self, *statements: str, rows: Any = (), table: str = "samples") -> None:
        """Run statements, with BLOB for this server's type of bytes; add rows to a table."""
        with self.root.begin() as connection:
            for statement in statements:
                for name, own in _TYPES[self.name].items():
                    statement = statement.replace(name, own)
                connection.exec_driver_sql(statement.replace("%", "%%"))
            if rows:
                marks = ", ".join(["%s"] * len(rows[0]))
                connection.exec_driver_sql(f"INSERT INTO {table} VALUES ({marks})", [*rows])

    def kill_others(self) -> int:
        """End every other connection to the database; how many there were."""
        listed = {
            "postgresql": "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE "
            "datname = current_database() AND pid <> pg_backend_pid()",
            "mariadb": "SELECT id FROM information_schema.processlist WHERE db = database() AND "
            "id <> connection_id()",
        }
        with self.root.begin() as connection:
            found = connection.exec_driver_sql(listed[self.name]).fetchall()
            for (number,) in found if self.name == "mariadb" else ():
                with contextlib.suppress(sql.exc.OperationalError):  # it has gone by itself
                    connection.exec_driver_sql(f"KILL {number}")
        return len(found)

    def through(self, port: int, password: str = "") -> str:
        """The URL by way of another port."""
        url = sql.make_url(self.url).set(host="127.0.0.1", port=port)
        return url.set(password=password or None).render_as_string(hide_password=False)


@contextlib.contextmanager
def running(name: str) -> Iterator[Server]:
    """A server with a new database, or the test is skipped."""
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


class Proxy:
    """Stands between a client and a server, and cuts the connections of its own.

    Attributes:
        port: Where it listens.
        cut_after: Bytes of an answer after which a connection is cut; 0: none is.
        refuses: Whether new connections are closed at once.
        cuts: Connections that were cut.
        passed: Bytes that were passed on.
    """

    def __init__(self, server: Server) -> None:
        url = sql.make_url(server.url)
        self._target = (url.host, url.port)
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.port = self._listening.getsockname()[1]
        self.cut_after, self.refuses, self.cuts, self.passed = 0, False, 0, 0
        self._open: set[socket.socket] = set()
        threading.Thread(target=self._accept, daemon=True).start()

    def cut(self) -> None:
        """Cut all connections."""
        for each in [*self._open]:
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
                self.cuts += 1

    def close(self) -> None:
        self.refuses = True
        self._listening.close()
        self.cut()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._listening.accept()
                if self.refuses:
                    client.close()
                    continue
                threading.Thread(target=self._pass, args=(client,), daemon=True).start()

    def _pass(self, client: socket.socket) -> None:
        answered = 0
        with client, socket.create_connection(self._target) as server:
            self._open |= {client, server}
            with contextlib.suppress(OSError):
                while True:
                    for each in select.select([client, server], [], [])[0]:
                        some = each.recv(1 << 14)
                        answered += len(some) if each is server else 0
                        self.passed += len(some)
                        if not some or 0 < self.cut_after < answered:
                            self.cuts += bool(some)
                            return
                        (client if each is server else server).sendall(some)
            self._open -= {client, server}
