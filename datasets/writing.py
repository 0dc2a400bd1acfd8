"""Write records with a writer: the plan, one part, or a whole small data set."""

from __future__ import annotations

import ctypes
import errno
import os
import zlib
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Protocol

import numpy as np

from penstock.core import files
from penstock.core.contracts import Storage, Writer
from penstock.core.parts import PackPlan, Part, PartSummary, plan_parts
from penstock.core.record_codec import record_checksum
from penstock.core.sample import BadRecord, Record

_BATCH_RECORDS = 64
_SAMPLES = 8
_READ_BYTES = 1 << 20
_MANY_FILES = 64


class Recode(Protocol):
    """Changes records, from any thread; ValueError makes a record bad."""

    @property
    def counts(self) -> Mapping[str, int]:
        """Return the number of records by kind of change."""

    def __call__(self, record: Record) -> Record:
        """Change a record."""


def recoded(
    source: Storage, recode: Recode | None = None, *, start: int = 0, stop: int | None = None
) -> Generator[Record | BadRecord, None, None]:
    """Yield the records ``start .. stop - 1`` of `source` in order, changed by `recode`."""
    for record in _records(source, start, len(source) if stop is None else stop):
        yield record if recode is None else _recoded(recode, record)


def _records(source: Storage, start: int, stop: int) -> Iterator[Record | BadRecord]:
    for first in range(start, stop, _BATCH_RECORDS):
        yield from source.read(np.arange(first, min(first + _BATCH_RECORDS, stop)))


def _recoded(recode: Recode, record: Record | BadRecord) -> Record | BadRecord:
    if isinstance(record, BadRecord):
        return record
    try:
        return recode(record)
    except ValueError as error:
        return BadRecord(record.index, record.key, str(error))


def make_plan(writer: Writer, source: Storage, recode: Recode | None = None) -> PackPlan:
    """Plan which records of `source` go into which parts."""
    count = len(source)
    rows = np.unique(np.linspace(0, count - 1, min(count, _SAMPLES)).astype(np.int64))
    found = [r for i in rows.tolist() for r in recoded(source, recode, start=i, stop=i + 1)]
    return PackPlan(
        index=source.index,
        parts=plan_parts(
            source.index, part_records=writer.part_records, part_bytes=writer.part_bytes
        ),
        samples=tuple(record for record in found if isinstance(record, Record)),
        recoded=recode is not None,
    )


@dataclass(slots=True)
class _Seen:
    """Collects metadata of the records on their way to the writer."""

    rows: list[int] = field(default_factory=list)
    checksums: list[int] = field(default_factory=list)
    sizes: list[int] = field(default_factory=list)
    labels: list[int] = field(default_factory=list)
    bad: list[BadRecord] = field(default_factory=list)


def write_part(
    writer: Writer,
    folder: Path,
    plan: PackPlan,
    part: Part,
    source: Storage,
    *,
    recode: Recode | None = None,
    skip_bad: bool = False,
) -> PartSummary:
    """Write one part and sync its files to disk."""
    seen = _Seen()
    counts = {} if recode is None else recode.counts
    before = dict(counts)
    records = recoded(source, recode, start=part.start, stop=part.stop)
    with closing(records):
        good = _watched(records, seen, source, skip_bad)
        written = writer.write_part(folder, plan, part, good)
    assert len(seen.rows) + len(seen.bad) == len(part), f"{writer} left records of {part}"
    return PartSummary(
        part=part,
        written=written,
        first=0,
        rows=np.array(seen.rows, np.int64),
        checksums=np.array(seen.checksums, np.uint32),
        sizes=np.array(seen.sizes, np.int64),
        labels=_labels(seen, source),
        marks={
            **sync_files(folder, written.files),
            **{name: mark_file(folder / name) for name in written.spooled},
        },
        bad=tuple(seen.bad),
        done={what: n - before.get(what, 0) for what, n in counts.items() if n != before.get(what)},
    )


def _watched(
    records: Iterator[Record | BadRecord], seen: _Seen, source: Storage, skip_bad: bool
) -> Iterator[Record]:
    """Yield the readable records, and collect their metadata."""
    for record in records:
        if isinstance(record, BadRecord):
            if not skip_bad:
                raise ValueError(
                    f"pack: {source}: {record.key!r} {record.cause}; repair or remove it, or give "
                    f"pack.on_error=skip"
                )
            seen.bad.append(record)
            continue
        checksum, size = record_checksum(record.fields, key=record.key)
        seen.rows.append(record.index)
        seen.checksums.append(checksum)
        seen.sizes.append(size)
        if "label" in record.fields:
            seen.labels.append(int(record.fields["label"]))
        yield record


def _labels(seen: _Seen, source: Storage) -> np.ndarray | None:
    if not seen.labels:
        return None
    if len(seen.labels) != len(seen.rows):
        raise ValueError(
            f"pack: {source}: {len(seen.labels)} of {len(seen.rows)} records have a label; all or "
            f"none"
        )
    return np.array(seen.labels, np.int64)


def check_labels(source: Storage, summaries: list[PartSummary]) -> None:
    """Raise ValueError if only some parts have labels."""
    labelled = sum(len(s) for s in summaries if s.labels is not None)
    written = sum(map(len, summaries))
    if labelled not in (0, written):
        raise ValueError(
            f"pack: {source}: {labelled} of {written} records have a label; all or none"
        )


def sync_file(path: Path) -> tuple[int, int]:
    """Sync a file to disk; return its size and CRC-32."""
    found = mark_file(path)
    files.sync(path)
    return found


def sync_files(folder: Path, names: Sequence[str]) -> dict[str, tuple[int, int]]:
    """Sync files below a folder to disk; return size and CRC-32 by name.

    Many files are synced with their whole file system in one call (syncfs(2)): one by one, 30,000
    small files took 140 s.
    """
    synced = len(names) > _MANY_FILES and _sync_disk_of(folder)
    mark = mark_file if synced else sync_file
    return {name: mark(folder / name) for name in names}


def _sync_disk_of(folder: Path) -> bool:
    """Sync a file system to disk; return False if the system has no such call."""
    libc = ctypes.CDLL(None, use_errno=True)
    if not hasattr(libc, "syncfs"):
        return False
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        if libc.syncfs(descriptor) == 0:
            return True
        number = ctypes.get_errno()
        if number == errno.ENOSYS:
            return False
        raise OSError(number, os.strerror(number), str(folder))
    finally:
        os.close(descriptor)


def mark_file(path: Path) -> tuple[int, int]:
    """Return size and CRC-32 of a file, to detect damage."""
    size, crc = 0, 0
    with open(path, "rb", buffering=0) as file:
        while chunk := file.read(_READ_BYTES):
            size, crc = size + len(chunk), zlib.crc32(chunk, crc)
    return size, crc


def rename_new(folder: Path, path: Path) -> None:
    """Rename a folder; replace at most an empty folder."""
    try:
        files.rename_new(folder, path)
    except FileExistsError as error:
        raise ValueError(f"pack: {path} was made by someone else meanwhile") from error


def write_storage(
    writer: Writer,
    path: str | Path,
    source: Storage,
    *,
    recode: Recode | None = None,
) -> list[PartSummary]:
    """Write all records of `source` in this process, atomically; return a summary of each part."""
    path = Path(path)
    if os.path.lexists(path):
        raise ValueError(f"pack: {path} is there already; choose another path or move it away")
    if not len(source):
        raise ValueError(f"pack: {source} is empty; nothing to write")
    path.parent.mkdir(parents=True, exist_ok=True)
    with files.whole_folder(path) as folder:
        plan = make_plan(writer, source, recode)
        writer.begin(folder, plan)
        summaries: list[PartSummary] = []
        for part in plan.parts:
            summary = write_part(writer, folder, plan, part, source, recode=recode)
            summaries.append(replace(summary, first=sum(map(len, summaries))))
            join(writer, folder, plan, summaries[-1])
        check_labels(source, summaries)
        writer.finish(folder, plan, summaries)
    return summaries


def join(writer: Writer, folder: Path, plan: PackPlan, summary: PartSummary) -> None:
    """Join a part, and remove its spooled files."""
    writer.join_part(folder, plan, summary)
    for name in summary.written.spooled:
        (folder / name).unlink(missing_ok=True)


def umask() -> int:
    """Return the permissions that new files do not get."""
    mask = os.umask(0o077)
    os.umask(mask)
    return mask
