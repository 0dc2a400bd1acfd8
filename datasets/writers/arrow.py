"""Records into Arrow files."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

from annotated_types import Ge

from datasets.table_writer import TableWriter
from pipeline.registry import register


@register("writer", "arrow")
class ArrowWriter(TableWriter):
    """A folder of Arrow IPC files, one for each part, with the columns of the Parquet writer.

    They are not compressed, so that a record is read from the mapped file by itself.

    Args:
        group_rows: Records of a record batch.
        part_records: The most records of a file.
    """

    ending = ".arrow"

    def __init__(
        self,
        *,
        group_rows: Annotated[int, Ge(1)] = 1000,
        part_records: Annotated[int, Ge(1)] = 10_000,
    ) -> None:
        self.group_rows = group_rows
        self.part_records = part_records

    @contextmanager
    def _open_file(self, path: Path, schema: Any) -> Iterator[Callable[[Any], None]]:
        import pyarrow as pa

        with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_file(sink, schema) as file:
            yield file.write_batch
