"""SQLite files that are read while another program writes to them: one state, or an error."""

from __future__ import annotations

import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest

from penstock.datasets.files.sqlite_files import open_to_read

WRITE = """
import sqlite3, sys
database = sqlite3.connect(sys.argv[1], timeout=0.2)
database.execute("UPDATE items SET state = 'new'")
database.commit()
"""


def made(path: Path, *, log: bool = False) -> str:
    database = sqlite3.connect(path)
    if log:
        database.execute("PRAGMA journal_mode=WAL")
    database.execute("CREATE TABLE items (number INTEGER, state TEXT)")
    database.executemany("INSERT INTO items VALUES (?, 'old')", [(n,) for n in range(3000)])
    database.commit()
    database.close()
    return str(path)


def write(path: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", WRITE, path], capture_output=True, text=True)


def test_another_connection_takes_no_lock_away(tmp_path):
    path = made(tmp_path / "items.db")
    cursor = open_to_read(path, timeout_s=30).cursor()
    cursor.execute("SELECT state FROM items")
    cursor.fetchone()
    open_to_read(path, timeout_s=30).close()
    assert "locked" in write(path).stderr
    assert {state for (state,) in cursor.fetchall()} == {"old"}


def test_rows_of_two_states_are_never_given(tmp_path):
    path = made(tmp_path / "items.db", log=True)
    cursor = open_to_read(path, timeout_s=30).cursor()
    cursor.execute("SELECT state FROM items")
    cursor.fetchone()
    assert write(path).returncode == 0
    with pytest.raises(OSError, match="written to while it was read"):
        cursor.fetchall()
