"""Writing a shard per part: what the forms of array files do alike."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from datasets.annotations.label_arrays import CLASSES_NAME
from datasets.formats.shard_columns import check_class_names, to_arrays
from datasets.index import write_whole
from datasets.parts import PackPlan, Part, PartSummary, Written, raw_keys
from datasets.sample import Record
from datasets.shards import FIELDS_NAME


class ShardWriter(ABC):
    """A shard for each part, and the names of the classes.

    Fields are arrays [n, ...] where the records of a part agree in type and shape. Others lie end
    to end, and ``FIELD.offsets`` says where each begins and the last ends, ``FIELD.shapes`` which
    shape it has, and ``FIELD.codes`` what it is (0 absent, 1 array, 2 bytes, 3 text, 4 JSON). The
    field ``key`` holds the keys. ``fields.txt`` names the fields that not all shards have.
    """

    version = 1
    part_records = 10_000
    part_bytes = 1 << 26
    cannot_hold: frozenset[str] = frozenset()
    storage_arguments: dict[str, Any] = {}  # noqa: RUF012

    def begin(self, folder: Path, plan: PackPlan) -> None:
        """Look whether the samples can be held."""
        check_class_names(plan.class_names)
        for record in plan.samples:
            self._check(to_arrays([record], [b""]))

    def write_part(
        self, folder: Path, plan: PackPlan, part: Part, records: Iterator[Record]
    ) -> Written:
        """Write a shard; nothing where no record can be read."""
        held = list(records)
        if not held:
            return Written()
        keys = raw_keys(plan.index, np.array([record.index for record in held], np.int64))
        return Written(files=self._write(folder, part.number, to_arrays(held, keys)))

    def join_part(self, folder: Path, plan: PackPlan, summary: PartSummary) -> None:
        """Do nothing: every part has files of its own."""
        return None

    def finish(self, folder: Path, plan: PackPlan, summaries: Sequence[PartSummary]) -> None:
        """Name the fields that not all shards have, and the classes."""
        found = [self._fields(folder, summary) for summary in summaries if len(summary)]
        names: set[str] = set().union(*found)
        lacking = sorted(name for name in names if any(name not in fields for fields in found))
        if lacking:
            _write_lines(folder / FIELDS_NAME, lacking)
        if plan.class_names is not None and "label" in names:
            _write_lines(folder / CLASSES_NAME, plan.class_names)

    @abstractmethod
    def _check(self, arrays: Mapping[str, NDArray[Any]]) -> None:
        """Raise ValueError where the arrays have a type that cannot be held."""

    @abstractmethod
    def _write(
        self, folder: Path, number: int, arrays: Mapping[str, NDArray[Any]]
    ) -> tuple[str, ...]:
        """Write the arrays of a shard; the names of its files."""

    @abstractmethod
    def _fields(self, folder: Path, summary: PartSummary) -> set[str]:
        """Names of the fields of a shard that is written."""


def _write_lines(path: Path, lines: Sequence[str]) -> None:
    text = "".join(f"{line}\n" for line in lines)
    write_whole(path, lambda file: file.write(text.encode()))
