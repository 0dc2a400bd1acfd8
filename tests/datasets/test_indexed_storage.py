"""The defaults of storages at one path."""

from __future__ import annotations

import os
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
        (f"{n:08d}", text if text is None else {"text": text}) for n, text in enumerate(texts)
    ]
    check_storage(lambda: LineStorage(str(path)), expected)
    first = LineStorage(str(path))
    assert len(first) == 5
    path.write_text("one\ntwo\n")
    assert len(LineStorage(str(path))) == 2 and len(first) == 5  # a run keeps its index
    assert LineStorage(str(path)).fingerprint() != first.fingerprint()
