"""Write records with a writer: the plan, one part, or a whole small data set."""

from __future__ import annotations

import os
import re
import zlib
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import closing
from pathlib import Path
from sys import getsizeof

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


Recode = Callable[[Record], Record]
"""Changes records, from any thread; ValueError makes a record bad."""


def recoded(
    source: Storage, recode: Recode | None, rows: Sequence[int]
) -> Generator[Record | BadRecord, None, None]:
    """Yield the records of `source` at `rows` in order, changed by `recode`."""
    for first in range(0, len(rows), _BATCH_RECORDS):
        for record in source.read(np.array(rows[first : first + _BATCH_RECORDS])):
            if recode is None or isinstance(record, BadRecord):
                yield record
                continue
            try:
                yield recode(record)
            except ValueError as error:
                yield BadRecord(record.index, record.key, str(error))


def make_plan(writer: Writer, source: Storage, recode: Recode | None = None) -> PackPlan:
    """Plan which records of `source` go into which parts."""
    index, count = source.index, len(source)
    rows = np.unique(np.linspace(0, count - 1, min(count, _SAMPLES)).astype(np.int64)).tolist()
    found = tuple(r for r in recoded(source, recode, rows) if isinstance(r, Record))
    most = writer.part_records
    if "size_bytes" not in index.columns and found:
        values = [value for record in found for value in record.fields.values()]
        size_bytes = sum(getattr(value, "nbytes", getsizeof(value)) for value in values)
        most = max(1, min(most, writer.part_bytes * len(found) // (size_bytes + 1)))
    parts = plan_parts(index, part_records=most, part_bytes=writer.part_bytes)
    return PackPlan(index, parts, found)


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
    good: list[tuple[int, int, int]] = []  # number, checksum and size
    labels: list[int] = []
    bad: list[BadRecord] = []

    def readable() -> Iterator[Record]:
        for record in records:
            if isinstance(record, BadRecord):
                if not skip_bad:
                    raise ValueError(
                        f"pack: {source}: {record.key!r} {record.cause}; repair or remove it, or "
                        f"give pack.on_error=skip"
                    )
                bad.append(record)
                continue
            good.append((record.index, *record_checksum(record.fields, key=record.key)))
            if "label" in record.fields:
                label = record.fields["label"]
                if not isinstance(label, int | np.integer):
                    raise ValueError(
                        f"pack: {record.key!r}: label is {label!r:.50}, expected a class id; "
                        f"give it another name: dataset.keys={{label:value}}"
                    )
                labels.append(int(label))
            yield record

    with closing(recoded(source, recode, range(part.start, part.stop))) as records:
        names = writer.write_part(folder, plan, part, readable())
    assert len(good) + len(bad) == len(part), f"{writer} left records of {part}"
    rows, checksums, sizes = np.array(good, np.int64).reshape(-1, 3).T.copy()
    return PartSummary(
        part=part,
        rows=rows,
        checksums=checksums.astype(np.uint32),
        sizes=sizes,
        labels=np.array(labels, np.int64) if labels else None,
        marks=sync_files(folder, names),
        bad=tuple(bad),
    )


def check_labels(source: Storage, summaries: list[PartSummary]) -> None:
    """Raise ValueError if only some records have labels."""
    labelled = sum(len(s.labels) for s in summaries if s.labels is not None)
    if labelled not in (0, written := sum(map(len, summaries))):
        said = f"{labelled} of {written} records have a label; all or none"
        raise ValueError(f"pack: {source}: {said}")


def refuse_class_names(names: Iterable[str]) -> None:
    """Raise ValueError for a name that may not come back from a line of ``classes.txt``."""
    for name in names:
        if not re.fullmatch(r"(?!\ufeff)[^\n\r]*\S", name):
            said = f"the class name {name!r} is blank, ends in a space or has a line break"
            raise ValueError(f"pack: {said}; rename it, or pack it as parquet")


def refuse_other_bytes(keys: Iterable[bytes]) -> None:
    """Raise ValueError for a key that is not UTF-8."""
    for key in keys:
        if key.decode(errors="replace").encode() != key:
            raise ValueError(f"pack: the key {key!r:.100} is not UTF-8; pack it as webdataset")


def sync_file(path: Path) -> tuple[int, int]:
    """Sync a file to disk; return its size and CRC-32."""
    files.sync(path)
    return mark_file(path)


def sync_files(folder: Path, names: Sequence[str]) -> dict[str, tuple[int, int]]:
    """Sync files below a folder to disk; return size and CRC-32 by name."""
    if len(names) > _MANY_FILES:
        os.sync()  # one by one, 30,000 small files took 140 s
    sync = mark_file if len(names) > _MANY_FILES else sync_file
    return {name: sync(folder / name) for name in names}


def mark_file(path: Path) -> tuple[int, int]:
    """Return size and CRC-32 of a file, to detect damage."""
    crc = 0
    with open(path, "rb", buffering=0) as file:
        while chunk := file.read(_READ_BYTES):
            crc = zlib.crc32(chunk, crc)
        return file.tell(), crc


def write_storage(
    writer: Writer, path: str | Path, source: Storage, *, recode: Recode | None = None
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
            summaries.append(write_part(writer, folder, plan, part, source, recode=recode))
        check_labels(source, summaries)
        writer.finish(folder, plan, summaries)
    return summaries
