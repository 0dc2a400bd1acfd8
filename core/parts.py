"""The plan of a packing, its parts and their results, as writers see them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from penstock.core.contracts import Index
from penstock.core.sample import BadRecord, Record

if TYPE_CHECKING:
    from numpy.typing import NDArray


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
    """The plan of a packing; equal when packing resumes.

    Attributes:
        index: The index of the source: keys, class names, columns.
        parts: The parts in order; together they cover the source.
        samples: The first, the last and some other records, in the form to write.
    """

    index: Index
    parts: tuple[Part, ...]
    samples: tuple[Record, ...]

    @property
    def class_names(self) -> tuple[str, ...] | None:
        """Class names by label, or None."""
        return self.index.class_names


@dataclass(frozen=True, slots=True)
class PartSummary:
    """The facts about a part on disk.

    Attributes:
        rows: Written records by their number in the source, int64 [n].
        checksums: CRC-32 of each record's fields, uint32 [n]; see `core.record_codec`.
        sizes: Size of each record's fields without the label in bytes, int64 [n].
        labels: Class ids, int64 [n], or None without labels.
        marks: Size and CRC-32 of each file of the part alone, by name.
        bad: Unreadable records, which were skipped.
    """

    part: Part
    rows: NDArray[np.int64]
    checksums: NDArray[np.uint32]
    sizes: NDArray[np.int64]
    labels: NDArray[np.int64] | None
    marks: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    bad: tuple[BadRecord, ...] = ()

    def __len__(self) -> int:
        """Return the number of written records."""
        return len(self.rows)


def plan_parts(index: Index, *, part_records: int, part_bytes: int) -> tuple[Part, ...]:
    """Split the source into parts with at most `part_records` records and `part_bytes` bytes.

    Every part has at least one record. Bytes count only if the index has ``size_bytes``.
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
    """Return the source's numbers of the records in the result, int64 [n], in order."""
    return np.concatenate([np.zeros(0, np.int64), *(summary.rows for summary in summaries)])


def written_labels(summaries: Sequence[PartSummary]) -> NDArray[Any] | None:
    """Return the class ids of the result, int32 or int64 [n], or None without labels."""
    found = [s.labels for s in summaries if len(s) and s.labels is not None]
    if not found:
        return None
    return np.concatenate(found)


def written_keys(plan: PackPlan, summaries: Sequence[PartSummary]) -> list[bytes]:
    """Return the keys of the result in order, as bytes."""
    return plan.index.raw_keys(written_rows(summaries))
