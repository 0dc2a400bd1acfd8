"""Records into Parquet files."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any

from annotated_types import Ge

from datasets.formats.arrow_records import RecordTable
from datasets.parts import PackPlan, Part, PartSummary, Written
from datasets.sample import Record
from pipeline.registry import register


@register("writer", "parquet")
class ParquetWriter:
    """A folder of Parquet files in the layout of the public hubs, one for each part.

    Images are structs of ``bytes`` and ``path``, class names are in the hub's metadata, arrays are
    lists, and whatever a record has beside lies in the column ``penstock_rest``. Nothing is
    compressed, as images are already; pages have checksums.

    Args:
        group_rows: Records of a row group, which the format reads as one: few of them for
            shuffled reading.
        part_records: The most records of a file.
    """

    version = 1
    part_bytes = 1 << 28
    cannot_hold: frozenset[str] = frozenset()
    storage_arguments: dict[str, Any] = {}  # noqa: RUF012

    def __init__(
        self,
        *,
        group_rows: Annotated[int, Ge(1)] = 100,
        part_records: Annotated[int, Ge(1)] = 10_000,
    ) -> None:
        self.group_rows = group_rows
        self.part_records = part_records

    def begin(self, folder: Path, plan: PackPlan) -> None:
        """Look whether the samples can be held."""
        list(RecordTable(plan).batches(plan.samples, rows=len(plan.samples)))

    def write_part(
        self, folder: Path, plan: PackPlan, part: Part, records: Iterator[Record]
    ) -> Written:
        """Write a file, if any record of the part can be read."""
        import pyarrow as pa
        import pyarrow.parquet as pq

        table = RecordTable(plan)
        name = f"part-{part.number:05d}-of-{len(plan.parts):05d}.parquet"
        rows = 0
        with pq.ParquetWriter(
            folder / name,
            table.schema,
            compression="NONE",
            use_dictionary=False,
            write_page_checksum=True,
        ) as file:
            for batch in table.batches(records, rows=self.group_rows):
                file.write_table(pa.Table.from_batches([batch]), row_group_size=len(batch))
                rows += len(batch)
        if not rows:
            (folder / name).unlink()
        return Written(files=(name,) if rows else ())

    def join_part(self, folder: Path, plan: PackPlan, summary: PartSummary) -> None:
        """A part is whole as it is."""

    def finish(self, folder: Path, plan: PackPlan, summaries: Sequence[PartSummary]) -> None:
        """The files are all that there is."""
