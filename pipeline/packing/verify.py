"""Whether what was packed is what it should be: every record against its checksum."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from datasets.index import Index
from datasets.parts import PartSummary, raw_keys, written_labels
from datasets.protocols import Storage
from datasets.record_checksum import record_checksum
from datasets.sample import BadRecord
from datasets.writing import mark_file
from pipeline.packing.made import packed_splits, read_mark
from pipeline.packing.screen import show
from pipeline.packing.workers import Tell, do_tasks
from pipeline.registry import find

_RANGE = 2048
_BATCH = 64
_SAMPLES = 64
_SAID = 20


@dataclass(frozen=True, slots=True)
class Compare:
    """Reads records and compares them with their checksums.

    Attributes:
        storage: What was packed.
        mark: Keys and checksums of its records.
    """

    storage: Storage
    mark: Index

    def __call__(self, task: NDArray[np.int64], tell: Tell) -> list[str]:
        """Compare the records at the rows `task`; a line for each that is damaged."""
        damaged = []
        for start in range(0, len(task), _BATCH):
            rows = task[start : start + _BATCH]
            sizes = self.mark.values("size_bytes", rows)
            checksums = self.mark.values("crc32", rows).tolist()
            keys = self.mark.keys(rows)
            records = self.storage.read(rows)
            for key, checksum, record in zip(keys, checksums, records, strict=True):
                if isinstance(record, BadRecord):
                    damaged.append(f"{key!r}: {record.cause}")
                elif record_checksum(record.fields, key=key)[0] != checksum:
                    damaged.append(f"{key!r}: it is not what was packed (checksum)")
            tell(len(rows), int(sizes.sum()))
        return damaged

    def name(self, task: NDArray[np.int64]) -> str:
        """Which rows."""
        return f"checking records {task[0]} to {task[-1]}"


def compare_all(
    storage: Storage, mark: Index, *, num_workers: int, imports: Sequence[str], what: str
) -> list[str]:
    """Compare every record, on several processes; a line for each that is damaged, in order."""
    rows = np.arange(len(mark))
    tasks = [rows[start : start + _RANGE] for start in range(0, len(rows), _RANGE)]
    screen = show(what, len(rows))
    try:
        found = do_tasks(
            Compare(storage, mark), tasks, lock=None, imports=imports, tell=screen.add,
            num_workers=num_workers if len(tasks) > 1 else 0,
        )  # fmt: skip
        with contextlib.closing(found):
            damaged = {int(task[0]): lines for task, lines in found}
    finally:
        screen.close()
    return [line for start in sorted(damaged) for line in damaged[start]]


def verify(
    storage: Storage, mark: Index, summaries: Sequence[PartSummary], class_names: Any
) -> None:
    """Refuse a result whose keys, labels or classes are not the source's, or some record of it.

    Raises:
        RuntimeError: So it is; writer or storage are wrong.
    """
    if len(storage) != len(mark):
        raise RuntimeError(f"pack: {storage} has {len(storage)} records, expected {len(mark)}")
    for start in range(0, len(mark), 1 << 16):
        rows = np.arange(start, min(start + (1 << 16), len(mark)))
        for found, expected in zip(raw_keys(storage.index, rows), mark.raw_keys(rows), strict=True):
            if found != expected:
                raise RuntimeError(f"pack: {storage} has the key {found!r}, expected {expected!r}")
    labels = written_labels(summaries)
    if labels is not None and not (
        "label" in storage.index.columns and np.array_equal(storage.index.column("label"), labels)
    ):
        raise RuntimeError(f"pack: {storage} has other labels than were packed")
    if labels is not None and class_names and storage.index.class_names != class_names:
        raise RuntimeError(f"pack: {storage} has other class names than were packed")
    some = np.random.default_rng(0).integers(0, len(mark), _SAMPLES)
    rows = np.unique(np.concatenate([[0, len(mark) - 1], some]))
    if damaged := Compare(storage, mark)(rows, lambda records, size_bytes: None):
        raise RuntimeError(f"pack: {storage}: {damaged[0]}")


def open_packed(folder: Path, metadata: Mapping[str, Any]) -> Storage:
    """The storage over a split that was packed.

    Raises:
        ValueError: No storage is registered by the name of its writer.
    """
    name = metadata["storage"]
    component = find(f"storage/{name}")
    if component is None:
        raise ValueError(
            f"pack: no storage named {name!r} is registered, by which {folder} could be read; give "
            f"its module in imports"
        )
    storage: Storage = component.target(str(folder), **metadata["arguments"])
    return storage


def check(path: Path, *, num_workers: int, imports: Sequence[str]) -> int:
    """Check what was packed some time ago, and print every record that is damaged.

    Args:
        path: A folder that packing made, or one split of it.
        num_workers: Processes.
        imports: Modules that register what it is read with.

    Returns:
        The exit status: 0, or 1 for damage.
    """
    status = 0
    for split, folder in packed_splits(path).items():
        lines = _damage(folder, split, num_workers, imports)
        for line in lines[:_SAID]:
            print(f"{split}: {line}")
        if len(lines) > _SAID:
            print(f"{split}: and {len(lines) - _SAID:,} more")
        if not lines:
            print(f"{split}: {len(read_mark(folder)):,} records, all as they were packed")
        status |= bool(lines)
    return status


def _damage(folder: Path, split: str, num_workers: int, imports: Sequence[str]) -> list[str]:
    """What is wrong with a split: its files, then its records."""
    try:
        mark = read_mark(folder)
    except ValueError as error:
        return [str(error)]
    files = []
    for name, expected in mark.metadata["files"].items():
        path = folder / name
        if not path.is_file():
            files.append(f"file {name} is gone")
        elif mark_file(path) != tuple(expected):
            files.append(f"file {name} is not what was written (size or checksum)")
    try:
        storage = open_packed(folder, mark.metadata)
        if len(storage) != len(mark):
            return [*files, f"it has {len(storage)} records, expected {len(mark)}"]
        records = compare_all(
            storage, mark, num_workers=num_workers, imports=imports, what=f"check {split}"
        )
    except (ValueError, OSError) as error:
        return [*files, " ".join(str(error).split())]
    return [*files, *records]


@contextlib.contextmanager
def cache_in(folder: Path) -> Iterator[None]:
    """Let indexes of what is about to be moved be cached where they go away with it."""
    before = os.environ.get("XDG_CACHE_HOME")
    os.environ["XDG_CACHE_HOME"] = str(folder)
    try:
        yield
    finally:
        if before is None:
            del os.environ["XDG_CACHE_HOME"]
        else:
            os.environ["XDG_CACHE_HOME"] = before
