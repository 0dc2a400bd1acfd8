"""Storages in memory, which a process that measures them imports in no time."""

from __future__ import annotations

import os

from penstock.core.contracts import Storage
from penstock.core.sample import Record
from penstock.datasets.records.table import Table


class Numbers(Storage):
    """Records of a few bytes, of which the last is said to be damaged by dying."""

    def __init__(self, size: int = 10, *, dies: bool = False) -> None:
        self.size, self.dies = size, dies

    def __len__(self) -> int:
        return self.size

    @property
    def index(self) -> Table:
        return Table([f"{n:03d}" for n in range(self.size)])

    def read(self, indices):
        if self.dies:
            os._exit(7)
        return [Record(i, f"{i:03d}", {"image": bytes(1000)}) for i in indices.tolist()]


class Refusing(Numbers):
    """One that cannot be opened."""

    def __len__(self) -> int:
        raise RuntimeError("no licence")
