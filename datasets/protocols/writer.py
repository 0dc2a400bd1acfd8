"""How packed data is written, part by part."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from datasets.sample import Record

if TYPE_CHECKING:
    from datasets.parts import PackPlan, Part, PartSummary, Written


class Writer(Protocol):
    r"""Writes records in the form that the storage of the same name reads.

    Records are written in parts, each by any process, several at a time; a part whose process
    was killed is written again, over the same names. The folder is a hidden one that becomes the
    result. Packing itself keeps the checksums of the files that a writer names, syncs them, and
    removes hidden files before `finish`: temporary ones are best hidden, as those of
    `datasets.index.write_whole` are. Its own ``.packed.arrow`` is hidden from storages.

    A writer that keeps one file for each part::

        @register("writer", "lines")
        class LinesWriter:
            version, part_bytes, cannot_hold, storage_arguments = 1, 1 << 26, frozenset(), {}

            def __init__(self, *, part_records: int = 10_000) -> None:
                self.part_records = part_records

            def begin(self, folder, plan): ...

            def write_part(self, folder, plan, part, records):
                name = f"lines-{part.number:05d}-of-{len(plan.parts):05d}.txt"
                with open(folder / name, "wb") as file:
                    file.writelines(record.fields["image"] + b"\n" for record in records)
                return Written(files=(name,))

            def join_part(self, folder, plan, summary): ...

            def finish(self, folder, plan, summaries): ...

    The same records and arguments give the same bytes. What a record holds that the form cannot
    is a ValueError of one line, from `begin` where the plan's samples show it.
    """

    @property
    def version(self) -> int:
        """Of what is written: another version does not go on with its parts."""

    @property
    def part_records(self) -> int:
        """The most records of a part."""

    @property
    def part_bytes(self) -> int:
        """The most bytes of a part, as far as the source's index knows them."""

    @property
    def cannot_hold(self) -> frozenset[str]:
        """What it refuses, of `datasets.parts.KINDS`."""

    @property
    def storage_arguments(self) -> Mapping[str, Any]:
        """What the storage of this name needs beside the path to read what is written."""

    def begin(self, folder: Path, plan: PackPlan) -> None:
        """Prepare the folder, at every start: parts may be there already.

        Raises:
            ValueError: The form cannot hold these records.
        """

    def write_part(
        self, folder: Path, plan: PackPlan, part: Part, records: Iterator[Record]
    ) -> Written:
        """Write all of `records`, those of `part` that can be read, in any process.

        Raises:
            ValueError: The form cannot hold one of them.
        """

    def join_part(self, folder: Path, plan: PackPlan, summary: PartSummary) -> None:
        """Add what a part spooled; in one process, in order, and again if it was killed in it."""

    def finish(self, folder: Path, plan: PackPlan, summaries: Sequence[PartSummary]) -> None:
        """Write what all parts together need; again if it was killed in it."""
