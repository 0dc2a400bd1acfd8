"""Mark what packing made, and verify it: every file and record against its checksum."""

from __future__ import annotations

import contextlib
import json
import os
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from penstock.core.contracts import Storage
from penstock.core.files import write_whole
from penstock.core.parts import (
    PackPlan,
    PartSummary,
    written_keys,
    written_labels,
    written_rows,
)
from penstock.core.record_codec import record_checksum
from penstock.core.registry import find
from penstock.core.sample import BadRecord
from penstock.datasets.records.label_files import MARK
from penstock.datasets.records.table import Table
from penstock.datasets.writing import mark_file, sync_file
from penstock.pipeline.packing.report import Screen
from penstock.pipeline.packing.workers import do_tasks

ABOUT = ".packed.json"
_FORMAT = 1
_ABOUT = {"packed", "splits", "files", "recipe"}
_RANGE, _BATCH, _CHUNK = 2048, 64, 1 << 16
_SAMPLES = 64
_SAID = 20


def write_mark(
    folder: Path, plan: PackPlan, summaries: Sequence[PartSummary], about: Mapping[str, Any]
) -> None:
    """Write the mark of a split: keys and checksums of its records, and its files.

    Also names and columns of annotations, which ``dataset/annotations=in_records`` reads.

    Args:
        folder: The split as its writer has finished it.
        plan: The plan.
        summaries: All parts.
        about: The writer and how to read it.
    """
    noted = plan.index.metadata if isinstance(plan.index, Table) else {}
    rows = written_rows(summaries)
    known = {name: mark for s in summaries for name, mark in s.marks.items()}
    files = {
        name: known[name] if name in known else sync_file(folder / name)
        for name in files_in(folder)
        if name != MARK
    }
    table = Table(
        written_keys(plan, summaries),
        {
            **{name: plan.index.column(name)[rows] for name in noted.get("annotated", ())},
            "crc32": np.concatenate([s.checksums for s in summaries]),
            "size_bytes": np.concatenate([s.sizes for s in summaries]),
        },
        metadata={
            "packed": _FORMAT,
            "files": files,
            "field_classes": noted.get("field_classes", {}),
            **about,
        },
    )
    table.write(folder / MARK)


def read_mark(folder: Path) -> Table:
    """The mark of a split.

    Raises:
        ValueError: There is none, or it is damaged.
    """
    path = folder / MARK
    if not path.is_file():
        raise ValueError(f"pack: {folder} has no {MARK}, so it was not made by pack")
    index = Table.open(path, verify=True)
    if index.metadata.get("packed") != _FORMAT:
        raise ValueError(f"pack: {path} is of another version than this one reads")
    return index


def write_about(folder: Path, splits: Sequence[str], recipe: Mapping[str, Any]) -> None:
    """Write what the whole is, beside its splits, whose marks are among its files."""
    names = [name for name in os.listdir(folder) if name not in splits]
    names += [f"{split}/{MARK}" for split in splits]
    beside = {name: sync_file(folder / name) for name in names}
    about = {"packed": _FORMAT, "splits": splits, "files": beside, "recipe": recipe}
    write_whole(folder / ABOUT, _with_checksum(about))


def _with_checksum(about: Mapping[str, Any]) -> str:
    text = json.dumps({name: value for name, value in about.items() if name != "crc32"})
    return f'{text[:-1]}, "crc32": {zlib.crc32(text.encode())}}}'


def packed_splits(folder: Path) -> dict[str, Path]:
    """The splits of what packing made, by name; a folder that is one split is itself.

    Raises:
        ValueError: It was not made by pack.
    """
    if (folder / MARK).is_file():
        return {folder.name: folder}
    return {name: folder / name for name in _about(folder)["splits"]}


def check_made(folder: Path) -> None:
    """Refuse a folder that packing did not make, or that was changed since.

    Raises:
        ValueError: It is such a folder; the first difference is named.
    """
    about, changes = _about(folder), _damage_beside(folder)
    marks = {split: read_mark(folder / split) for split in about["splits"]}
    known = {ABOUT, *about["files"]}  # the marks of the splits among them
    for split, mark in marks.items():
        files = mark.metadata["files"]
        changes += _changed_files(folder / split, files)
        known |= {f"{split}/{name}" for name in files}
    changes += [f"file {name} is new" for name in files_in(folder) if name not in known]
    if changes:
        raise ValueError(
            f"pack.overwrite: {folder} was changed since pack made it ({changes[0]}) and is left "
            f"alone; move it away, or choose another pack.path"
        )


def _about(folder: Path) -> dict[str, Any]:
    try:
        about: dict[str, Any] = json.loads((folder / ABOUT).read_text())
        if about["packed"] == _FORMAT and about.keys() >= _ABOUT:
            return about
    except (FileNotFoundError, NotADirectoryError, ValueError, KeyError, TypeError):
        pass
    raise ValueError(
        f"pack: {folder} was not made by pack (no {ABOUT} that this version reads) and is left "
        f"alone; choose another path"
    )


def files_in(folder: Path) -> list[str]:
    """Names of all files below a folder, from there on, sorted; links count as files."""
    found = []
    for root, folders, names in os.walk(folder):
        links = [name for name in folders if os.path.islink(os.path.join(root, name))]
        found += [os.path.relpath(os.path.join(root, name), folder) for name in names + links]
    return sorted(found)


def remove_hidden(folder: Path, names: Iterable[str]) -> None:
    """Remove files that are hidden: half of what a process wrote that was killed."""
    for name in names:
        if os.path.basename(name).startswith("."):
            (folder / name).unlink()


@dataclass(frozen=True, slots=True)
class Compare:
    """Reads records and compares them with their checksums.

    Attributes:
        storage: What was packed.
        mark: Keys and checksums of its records.
    """

    storage: Storage
    mark: Table

    def __call__(self, task: NDArray[np.int64]) -> list[str]:
        """Compare the records at the rows `task`; a line for each that is damaged."""
        damaged = []
        for start in range(0, len(task), _BATCH):
            rows = task[start : start + _BATCH]
            checksums = self.mark.values("crc32", rows).tolist()
            keys = self.mark.keys(rows)
            records = self.storage.read(rows)
            for key, checksum, record in zip(keys, checksums, records, strict=True):
                if isinstance(record, BadRecord):
                    damaged.append(f"{key!r}: {record.cause}")
                elif record_checksum(record.fields, key=key)[0] != checksum:
                    damaged.append(f"{key!r}: it is not what was packed (checksum)")
        return damaged

    def name(self, task: NDArray[np.int64]) -> str:
        """Name the rows."""
        return f"checking records {task[0]} to {task[-1]}"


def compare_all(
    storage: Storage, mark: Table, *, num_workers: int, imports: Sequence[str], what: str
) -> list[str]:
    """Compare every record, on several processes; a line for each that is damaged, in order."""
    rows = np.arange(len(mark))
    tasks = [rows[start : start + _RANGE] for start in range(0, len(rows), _RANGE)]
    found = do_tasks(
        Compare(storage, mark), tasks, lock=None, imports=imports,
        num_workers=num_workers if len(tasks) > 1 else 0,
    )  # fmt: skip
    damaged: dict[int, list[str]] = {}
    with Screen(what, len(rows)) as screen, contextlib.closing(found):
        for task, lines in found:
            damaged[int(task[0])] = lines
            screen.add(len(task), int(mark.values("size_bytes", task).sum()))
    return [line for start in sorted(damaged) for line in damaged[start]]


def verify(
    storage: Storage, mark: Table, summaries: Sequence[PartSummary], class_names: Any
) -> None:
    """Refuse a result whose keys, labels or classes are not the source's, or some record of it.

    Raises:
        RuntimeError: So it is; writer or storage are wrong.
    """
    if len(storage) != len(mark):
        raise RuntimeError(f"pack: {storage} has {len(storage)} records, expected {len(mark)}")
    for start in range(0, len(mark), _CHUNK):
        rows = np.arange(start, min(start + _CHUNK, len(mark)))
        for found, expected in zip(storage.index.raw_keys(rows), mark.raw_keys(rows), strict=True):
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
    if damaged := Compare(storage, mark)(rows):
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
    storage: Storage = component.target(str(folder))
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
    damage = [] if (path / MARK).is_file() else _damage_beside(path)
    for line in damage:
        print(line)
    is_damaged = bool(damage)
    for split, folder in packed_splits(path).items():
        damage = _damage(folder, split, num_workers, imports)
        is_damaged |= bool(damage)
        lines = damage[:_SAID]
        if len(damage) > _SAID:
            lines.append(f"and {len(damage) - _SAID:,} more")
        for line in lines or [f"{len(read_mark(folder)):,} records, all as they were packed"]:
            print(f"{split}: {line}")
    return int(is_damaged)


def _damage_beside(folder: Path) -> list[str]:
    """List what is damaged of what stands beside the splits, and of their marks."""
    about, text = _about(folder), (folder / ABOUT).read_text()
    first = {*about} == _ABOUT and text == json.dumps(about)  # of a version without a checksum
    whole = first or text == _with_checksum(about)
    return [*([] if whole else [_changed(ABOUT)]), *_changed_files(folder, about["files"])]


def _changed(name: str) -> str:
    return f"file {name} is not what was written (size or checksum)"


def _changed_files(folder: Path, marks: Mapping[str, Sequence[int]]) -> list[str]:
    """List files that are gone or changed."""
    found = []
    for name, expected in marks.items():
        path = folder / name
        if not path.is_file():
            found.append(f"file {name} is gone")
        elif mark_file(path) != tuple(expected):
            found.append(_changed(name))
    return found


def _damage(folder: Path, split: str, num_workers: int, imports: Sequence[str]) -> list[str]:
    """List what is damaged of a split: its files, then its records."""
    try:
        mark = read_mark(folder)
    except ValueError as error:
        return [str(error)]
    files = _changed_files(folder, mark.metadata["files"])
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


def refuse_duplicates(source: Storage) -> None:
    """Refuse a source of which two records have one key.

    Raises:
        ValueError: So it is; one of the keys is named.
    """
    index, count = source.index, len(source)
    hashes = np.empty(count, np.int64)
    for start in range(0, count, _CHUNK):
        rows = np.arange(start, min(start + _CHUNK, count))
        hashes[rows] = [hash(key) for key in index.raw_keys(rows)]
    order = np.argsort(hashes, kind="stable")
    same = np.flatnonzero(hashes[order[1:]] == hashes[order[:-1]])
    for one, other in zip(order[same].tolist(), order[same + 1].tolist(), strict=True):
        key, another = index.raw_keys(np.array([one, other]))
        if key == another:
            raise ValueError(
                f"pack: {source}: {key.decode('utf-8', 'backslashreplace')!r} is the key of the "
                f"records {one} and {other}; give each its own"
            )
