"""Packings of a few records in small parts, for tests that kill, fill and damage them."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path
from typing import Any

import numpy as np

from penstock.core.sample import BadRecord, Record
from penstock.datasets.storages.lmdb import LmdbWriter
from penstock.pipeline.packing.run import Packing
from tests.contracts.records import ListedRecords, records_of
from tests.pipeline.packing.killing import packing_of

KINDS = frozenset(("keys", "files", "labels", "shapes", "values"))


class Deadly(ListedRecords):
    """Reading some of the records ends the process, as often as it says.

    Args:
        times: How often.
        counts: A folder that remembers it.
        number: The signal that ends it.
    """

    def __init__(
        self,
        records: Any,
        class_names: Any,
        *,
        times: int,
        counts: Path,
        number: int = signal.SIGKILL,
    ) -> None:
        super().__init__(records, class_names)
        self._times, self._counts, self._parent = times, counts, os.getpid()
        self._number = number

    def read(self, indices: Any) -> list[Record | BadRecord]:
        if 12 in np.asarray(indices) and os.getpid() != self._parent:
            count = len(list(self._counts.iterdir()))
            if count < self._times:
                (self._counts / str(count)).touch()
                os.kill(os.getpid(), self._number)
        return super().read(indices)


class Held(ListedRecords):
    """Another process waits before it reads the later records, as long as there is a file."""

    def __init__(self, records: Any, class_names: Any, file: Path) -> None:
        super().__init__(records, class_names)
        self._file, self._parent = file, os.getpid()

    def read(self, indices: Any) -> list[Record | BadRecord]:
        if max(indices) >= len(self) // 2 and os.getpid() != self._parent:
            while self._file.exists():
                time.sleep(0.02)
        return super().read(indices)


def small_writer(part_records: int = 5) -> LmdbWriter:
    writer = LmdbWriter()
    writer.part_records = part_records
    return writer


def packing(target: Path, sources: Any = None, **changes: Any) -> Packing:
    sources = sources or {"train": records_of(KINDS), "val": records_of(KINDS, 7)}
    return packing_of(target, small_writer(), "lmdb", sources, **changes)
