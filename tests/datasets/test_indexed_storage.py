"""What the base of storages at one path gives."""

from __future__ import annotations

import os
import pickle
from typing import Any

import numpy as np
from numpy.typing import NDArray

from penstock.core.sample import BadRecord, Record
from penstock.datasets.files.access import RangeFile
from penstock.datasets.records.indexed_storage import IndexedStorage
from penstock.datasets.records.table import Table, numbered
from tests.contracts.storage import check_storage


class LineStorage(IndexedStorage):
    name = "lines"

    def __init__(self, path: str) -> None:
        self.path = os.path.abspath(path)

    def scan(self) -> Table:
        with open(self.path, "rb") as file:
            sizes = np.array([len(line) for line in file], np.int64)
        columns = {"offset": np.cumsum(sizes) - sizes, "size_bytes": sizes}
        return Table(numbered(len(sizes), "{:08d}"), columns)

    def open(self) -> RangeFile:
        return RangeFile(self.path, root=os.path.dirname(self.path))

    def read(self, indices: NDArray[np.int64]) -> list[Record | BadRecord]:
        offsets = self.index.values("offset", indices).tolist()
        sizes = self.index.values("size_bytes", indices).tolist()
        return self.records(indices, map(self._line, offsets, sizes))

    def _line(self, offset: int, size_bytes: int) -> dict[str, Any] | str:
        try:
            return {"text": self.opened.read(offset, size_bytes).decode().rstrip()}
        except ValueError as error:
            return str(error)


def test_scan_and_read_are_all_that_a_storage_needs(tmp_path):
    path = tmp_path / "t.txt"
    path.write_bytes("one\nzwölf\n\n".encode() + b"\xff\n" + b"last")
    texts = ["one", "zwölf", "", None, "last"]
    expected = [
        (f"{n:08d}", None if text is None else {"text": text}) for n, text in enumerate(texts)
    ]
    check_storage(lambda: LineStorage(str(path)), expected)


def test_a_path_may_be_an_object(tmp_path):
    (tmp_path / "t.txt").write_text("one\n")
    storage = LineStorage(str(tmp_path / "t.txt"))
    storage.path = tmp_path / "t.txt"
    assert pickle.loads(pickle.dumps(storage)).read(np.array([0]))[0].fields == {"text": "one"}


def test_what_is_written_anew_is_scanned_anew(tmp_path):
    path = tmp_path / "t.txt"
    path.write_text("one\n")
    first = LineStorage(str(path))
    assert len(first) == 1
    path.write_text("one\ntwo\n")
    assert len(LineStorage(str(path))) == 2
    assert len(first) == 1, "a run goes on with what it has opened"
    assert LineStorage(str(path)).fingerprint() != first.fingerprint()
