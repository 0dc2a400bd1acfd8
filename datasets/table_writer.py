"""Records into the rows of tables, a file for each part: what Parquet and Arrow do alike."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, ClassVar

from datasets.formats.arrow_records import RecordTable
from datasets.parts import PackPlan, Part, PartSummary, Written
from datasets.sample import Record


class TableWriter(ABC):
    """A folder of files that are whole when their part is written; see `datasets.protocols.Writer`.

    Attributes:
        ending: Ending of the files.
        group_rows: Records of a group, as the format calls what it reads as one.
        part_records: The most records of a file.
    """

    ending: ClassVar[str]
    version = 1
    part_bytes = 1 << 28
    cannot_hold: frozenset[str] = frozenset()
    storage_arguments: dict[str, Any] = {}  # noqa: RUF012
    group_rows: int
    part_records: int

    @abstractmethod
    def _open_file(self, path: Path, schema: Any) -> AbstractContextManager[Callable[[Any], None]]:
        """Make a file that takes record batches of a ``pyarrow.Schema``."""

    def begin(self, folder: Path, plan: PackPlan) -> None:
        """Look whether the samples can be held."""
        list(RecordTable(plan).batches(plan.samples, rows=self.group_rows))

    def write_part(
        self, folder: Path, plan: PackPlan, part: Part, records: Iterator[Record]
    ) -> Written:
        """Write a file, if any record of the part can be read."""
        table = RecordTable(plan)
        name = f"part-{part.number:05d}-of-{len(plan.parts):05d}{self.ending}"
        rows = 0
        with self._open_file(folder / name, table.schema) as write:
            for batch in table.batches(records, rows=self.group_rows):
                write(batch)
                rows += len(batch)
        if not rows:
            (folder / name).unlink()
        return Written(files=(name,) if rows else ())

    def join_part(  # noqa: B027 - there is nothing to do
        self, folder: Path, plan: PackPlan, summary: PartSummary
    ) -> None:
        """A part is whole as it is."""

    def finish(  # noqa: B027
        self, folder: Path, plan: PackPlan, summaries: Sequence[PartSummary]
    ) -> None:
        """The files are all that there is."""
