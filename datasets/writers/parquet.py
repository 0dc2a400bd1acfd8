"""Records into Parquet files."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

from annotated_types import Ge

from datasets.table_writer import TableWriter
from pipeline.registry import register


@register("writer", "parquet")
class ParquetWriter(TableWriter):
    """A folder of Parquet files in the layout of the public hubs, one for each part.

    Images are structs of ``bytes`` and ``path``, class names are in the hub's metadata, arrays are
    lists, and whatever a record has beside lies in the column ``penstock_rest``. Nothing is
    compressed, as images are already; pages have checksums.

    Args:
        group_rows: Records of a row group, which the format reads as one: few of them for
            shuffled reading.
        part_records: The most records of a file.
    """

    ending = ".parquet"

    def __init__(
        self,
        *,
        group_rows: Annotated[int, Ge(1)] = 100,
        part_records: Annotated[int, Ge(1)] = 10_000,
    ) -> None:
        self.group_rows = group_rows
        self.part_records = part_records

    @contextmanager
    def _open_file(self, path: Path, schema: Any) -> Iterator[Callable[[Any], None]]:
        import pyarrow as pa
        import pyarrow.parquet as pq

        with pq.ParquetWriter(
            path, schema, compression="NONE", use_dictionary=False, write_page_checksum=True
        ) as file:
            yield lambda batch: file.write_table(
                pa.Table.from_batches([batch]), row_group_size=len(batch)
            )
