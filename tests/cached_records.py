"""Records of every kind in a storage that keeps the whole contract: what caches are tested over."""

from __future__ import annotations

from typing import Any

import numpy as np

from penstock.core.stage_times import Traffic, counted
from penstock.datasets.records.table import Table
from tests.memory_storage import MemoryStorage

BAD = 4


def fields(n: int = 12) -> list[Any]:
    rng = np.random.default_rng(0)
    made: list[Any] = [
        {
            "image": rng.bytes(int(rng.integers(1, 9000))),
            "label": i % 3,
            "boxes": rng.random((i % 4, 4), np.float32),
            "more": [1, (2.5, "ä"), {"a": b"b", "none": None}],
        }
        for i in range(n)
    ]
    made[BAD] = "broken"
    return made


class CountedRecords(list[Any]):
    """Records, and the counts of the read that returned them: `hits`, `misses`, `damaged`."""

    def __init__(self, records: Any, asked: Traffic) -> None:
        super().__init__(records)
        self.hits, self.misses, self.damaged = asked.hits, asked.misses, asked.damaged


def counted_read(storage: Any, indices: Any) -> CountedRecords:
    with counted() as asked:
        records = storage.read(indices)
    return CountedRecords(records, asked)


class Records(MemoryStorage):
    """They are made anew where it is unpickled."""

    def __init__(self) -> None:
        super().__init__(fields())
        labels = [0 if isinstance(f, str) else f["label"] for f in self.fields]
        keys = [self._key(i) for i in range(len(self))]
        self._index = Table(keys, {"label": labels}, ["a", "b", "c"])

    @property
    def index(self) -> Any:
        return self._index

    def read(self, indices: np.ndarray) -> Any:
        for index in indices.tolist():
            if not 0 <= index < len(self):
                raise IndexError(f"index {index} is outside 0 .. {len(self) - 1}")
        return super().read(indices)

    def __reduce__(self) -> Any:
        return Records, ()


EXPECTED = [(MemoryStorage._key(i), None if isinstance(f, str) else f)
            for i, f in enumerate(fields())]  # fmt: skip


class Numbered(MemoryStorage):
    """Twenty records of 60,000 bytes, other ones for each number."""

    def __init__(self, number: int) -> None:
        rng = np.random.default_rng(number)
        super().__init__([{"image": rng.bytes(60_000)} for _ in range(20)])
        self.number = number

    def __str__(self) -> str:
        return f"memory {self.number}"
