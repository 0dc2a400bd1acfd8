"""``bad_samples.csv``: the bad samples of a run, listed by all its ranks and both its splits."""

from __future__ import annotations

import contextlib
import csv
import fcntl
import io
import os
from collections.abc import Iterator
from dataclasses import astuple, fields, replace
from pathlib import Path
from typing import IO

from pipeline.loader.contract import Fault

_COLUMNS = (*(field.name for field in fields(Fault)), "split")
_IDENTITY = [_COLUMNS.index(name) for name in ("split", "epoch", "position", "key")]
_ROW_END = b"\r\n"


class BadSampleList:
    """Appends bad samples to a file that other processes append to as well.

    A row is a line, and those of a batch are one write. A file that a killed process or a full
    disk left without its header or with a row cut short is gone on with.

    Args:
        path: The file; made with the first row.
        split: What its rows say in ``split``.
    """

    def __init__(self, path: Path, *, split: str) -> None:
        self._path = path
        self._split = split
        self._listed: set[tuple[str, ...]] | None = None

    def add(self, faults: tuple[Fault, ...]) -> None:
        """List those that are not listed yet, by this process or by one before it."""
        self._path.parent.mkdir(parents=True, exist_ok=True)
        with open(self._path, "ab+", buffering=0) as file, _locked(file):
            if self._listed is None:
                self._listed = _read_listed(file)
            rows = self._new_rows(faults, self._listed)
            if rows:
                _write(file, _beginning(file) + rows)

    def _new_rows(self, faults: tuple[Fault, ...], listed: set[tuple[str, ...]]) -> bytes:
        rows = []
        for fault in faults:
            line = replace(fault, cause=" ".join(fault.cause.split()))
            row = tuple(map(str, (*astuple(line), self._split)))
            if (name := _identity(row)) not in listed:
                listed.add(name)
                rows.append(row)
        return _encoded(rows)


def _identity(row: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(row[column] for column in _IDENTITY)


def _encoded(rows: list[tuple[str, ...]]) -> bytes:
    text = io.StringIO(newline="")
    csv.writer(text, lineterminator=_ROW_END.decode()).writerows(rows)
    return text.getvalue().encode("utf-8", "surrogateescape")


def _beginning(file: IO[bytes]) -> bytes:
    """What must stand between the file as it is and a new row."""
    size = file.seek(0, os.SEEK_END)
    if not size:
        return _encoded([_COLUMNS])
    file.seek(size - 1)
    if file.read(1) == b"\n":
        return b""
    file.seek(0)
    cut = file.read().rpartition(b"\n")[2]
    return b'"' * (cut.count(b'"') % 2) + _ROW_END


def _write(file: IO[bytes], data: bytes) -> None:
    while data:  # more than once only where the disk fills up
        data = data[file.write(data) :]


def _read_listed(file: IO[bytes]) -> set[tuple[str, ...]]:
    """The rows that can be read, each by itself: one that was cut short spoils no other."""
    file.seek(0)
    listed = set()
    for line in file.read().decode("utf-8", "surrogateescape").split("\n"):
        with contextlib.suppress(csv.Error):
            row = tuple(next(csv.reader([line]), ()))
            if len(row) == len(_COLUMNS):
                listed.add(_identity(row))
    return listed


@contextlib.contextmanager
def _locked(file: IO[bytes]) -> Iterator[None]:
    """Hold the file's lock; file systems without locks go without."""
    with contextlib.suppress(OSError):
        fcntl.flock(file, fcntl.LOCK_EX)
    try:
        yield
    finally:
        # Not left to closing: a process that was forked meanwhile has the file open as well.
        with contextlib.suppress(OSError):
            fcntl.flock(file, fcntl.LOCK_UN)
