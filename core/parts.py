"""The plan of a packing, its parts, and what became of each, as writers see them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from penstock.core.contracts import Index
from penstock.core.sample import BadRecord, Record

if TYPE_CHECKING:
    from numpy.typing import NDArray

KINDS = {
    "keys": "keys of any characters, and not the numbers of the records",
    "numbered": "the numbers of the records as keys, and not image files' paths by class",
    "classes": "class ids in another order than that of the classes' names",
    "order": "another order than that of the keys' bytes",
    "files": "images as encoded files",
    "pixels": "images as decoded pixels, uint8 [H, W, C], each of its own size",
    "labels": "class ids",
    "arrays": "arrays of numbers, all of one shape and type",
    "shapes": "arrays whose shapes differ from record to record, empty ones among them",
    "bytes": "byte strings",
    "numbers": "single numbers",
    "values": "texts, nulls, and nested lists and objects",
    "missing": "fields that some of the records lack",
    "no image": "records without an image",
}
"""Properties of records, of which a form may be unable to hold some."""


@dataclass(frozen=True, slots=True)
class Part:
    """A range of the source's records that one process writes: ``start`` to ``stop`` - 1."""

    number: int
    start: int
    stop: int

    def __len__(self) -> int:
        return self.stop - self.start


@dataclass(frozen=True, slots=True)
class PackPlan:
    """All that is to be packed; the same whenever packing is gone on with.

    Attributes:
        index: The index of the source: keys, class names, columns.
        parts: The parts in order; together they are all records of the source.
        samples: Some records, as they are to be written: the first, the last and some between.
        recoded: Images may be changed on the way, and the index's columns speak of others.
    """

    index: Index
    parts: tuple[Part, ...]
    samples: tuple[Record, ...]
    recoded: bool

    @property
    def class_names(self) -> tuple[str, ...] | None:
        """Names of the classes by label, or None."""
        return self.index.class_names

    def __len__(self) -> int:
        """Number of records of the source."""
        return len(self.index)


@dataclass(frozen=True, slots=True)
class Written:
    """A writer's notes on a part that it has written.

    Attributes:
        columns: Arrays [n] with a value for each record written, kept for `Writer.finish`.
        files: Files of the result that hold this part alone, named from the folder on.
        spooled: Files that `Writer.join_part` reads, removed once that is done.
    """

    columns: Mapping[str, NDArray[Any]] = field(default_factory=dict)
    files: tuple[str, ...] = ()
    spooled: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class PartSummary:
    """Facts about a part that is written and on the disk.

    Attributes:
        part: The part.
        written: What the writer said of it.
        first: Number in the result of its first record: some before it may have been left out.
        rows: Records of the source that were written, int64 [n].
        checksums: CRC-32 of each record's fields, uint32 [n]; see `core.record_codec`.
        sizes: Bytes of each record's fields but its label, int64 [n].
        labels: Class ids, int64 [n], or None where the records have no label.
        marks: Size and CRC-32 of each file that the writer named.
        bad: Records that cannot be read and were left out.
        done: How many images were changed in which way.
    """

    part: Part
    written: Written
    first: int
    rows: NDArray[np.int64]
    checksums: NDArray[np.uint32]
    sizes: NDArray[np.int64]
    labels: NDArray[np.int64] | None
    marks: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    bad: tuple[BadRecord, ...] = ()
    done: Mapping[str, int] = field(default_factory=dict)

    def __len__(self) -> int:
        """Number of records written."""
        return len(self.rows)


def plan_parts(index: Index, *, part_records: int, part_bytes: int) -> tuple[Part, ...]:
    """Ranges of at most so many records and bytes, of one record at least.

    Args:
        index: The index of the source; where it has no ``size_bytes``, records alone count.
        part_records: The most records.
        part_bytes: The most bytes.
    """
    count = len(index)
    ends = None
    if "size_bytes" in index.columns:
        ends = np.cumsum(index.column("size_bytes"), dtype=np.int64)
    parts: list[Part] = []
    start = 0
    while start < count:
        stop = min(start + part_records, count)
        if ends is not None:
            before = int(ends[start - 1]) if start else 0
            stop = min(stop, int(np.searchsorted(ends, before + part_bytes, side="right")))
        stop = max(stop, start + 1)
        parts.append(Part(len(parts), start, stop))
        start = stop
    return tuple(parts)


def written_rows(summaries: Sequence[PartSummary]) -> NDArray[np.int64]:
    """Records of the source in the result, int64 [n], in order."""
    return _joined([summary.rows for summary in summaries], np.int64)


def written_labels(summaries: Sequence[PartSummary]) -> NDArray[Any] | None:
    """Class ids of the result, int32 or int64 [n]; None where there are none."""
    found = [s.labels for s in summaries if len(s) and s.labels is not None]
    if not found:
        return None
    labels = _joined(found, np.int64)
    narrow = labels.size and -(1 << 31) <= labels.min() and labels.max() < 1 << 31
    return labels.astype(np.int32) if narrow else labels


def written_column(summaries: Sequence[PartSummary], name: str) -> NDArray[Any]:
    """A column that the writer gave for every part, [n]."""
    return np.concatenate([summary.written.columns[name] for summary in summaries])


def written_keys(plan: PackPlan, summaries: Sequence[PartSummary]) -> list[bytes]:
    """Keys of the result in order, as bytes."""
    return raw_keys(plan.index, written_rows(summaries))


def raw_keys(index: Index, rows: NDArray[np.int64]) -> list[bytes]:
    """Keys of any index as bytes, those of files that are no UTF-8 among them."""
    return index.raw_keys(rows)


def _joined(arrays: Sequence[NDArray[Any]], dtype: Any) -> NDArray[Any]:
    return np.concatenate(arrays) if arrays else np.zeros(0, dtype)
