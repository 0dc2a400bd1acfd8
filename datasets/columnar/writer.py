"""Write records into the rows of tables, a file for each part, for Parquet and Arrow."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

import numpy as np
from annotated_types import Ge

from penstock.core.contracts import Writer
from penstock.core.parts import PackPlan, Part
from penstock.core.sample import Record
from penstock.datasets.writing import refuse_other_bytes


class TableWriter(Writer):
    """Writes a folder of files, each complete with its part.

    Args:
        group_rows: Records of a group, the format's unit of reading.
        part_records: Maximum records of a file.
        compression: Of all columns: worth it for arrays and texts, but not for image files, which
            are compressed already. None: uncompressed.
    """

    ending: ClassVar[str]

    def __init__(
        self,
        *,
        group_rows: Annotated[int, Ge(1)] = 100,
        part_records: Annotated[int, Ge(1)] = 10_000,
        compression: Literal["zstd", "lz4"] | None = None,
    ) -> None:
        self.group_rows = group_rows
        self.part_records = part_records
        self.compression = compression

    def begin(self, folder: Path, plan: PackPlan) -> None:
        refuse_other_bytes(plan.index.raw_keys(np.arange(len(plan.index))))

    @abstractmethod
    def _create(self, path: str, schema: Any) -> Any:
        """Create a file; return the library's writer of record batches."""

    def write_part(
        self, folder: Path, plan: PackPlan, part: Part, records: Iterator[Record]
    ) -> tuple[str, ...]:
        from penstock.datasets.columnar.record_columns import RecordTable

        table = RecordTable(plan)
        name = f"part-{part.number:05d}-of-{len(plan.parts):05d}{self.ending}"
        rows = 0
        with self._create(str(folder / name), table.schema) as file:
            for batch in table.batches(records, rows=self.group_rows):
                file.write_batch(batch)
                rows += len(batch)
        if not rows:
            (folder / name).unlink()
        return (name,) if rows else ()
