"""Footers and row groups of Parquet files, read so that damage is told from trouble of the disk."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from datasets.formats.arrow_damage import DamagedFile, damage
from datasets.shared_file import FileView


def read_footer(view: FileView) -> Any:
    """The footer, a ``pyarrow.parquet.FileMetaData``.

    Raises:
        DamagedFile: There is none.
    """
    import pyarrow.parquet as pq

    with damage():
        footer = pq.ParquetFile(view).metadata
        # Read here, because a schema may be wrong in a way that only its use shows.
        footer.schema.to_arrow_schema()
        return footer


def read_column(view: FileView, footer: Any, name: str) -> Any:
    """One column of all row groups, a ``pyarrow.ChunkedArray``.

    Raises:
        DamagedFile: It cannot be read.
    """
    import pyarrow.parquet as pq

    with damage():
        file = pq.ParquetFile(view, metadata=footer, page_checksum_verification=True)
        table = file.read(columns=[name], use_threads=False)
        table.validate(full=True)
    if len(table) != footer.num_rows:
        raise DamagedFile(f"column {name!r} has {len(table):,} of {footer.num_rows:,} rows")
    return table.column(name)


def read_group(view: FileView, footer: Any, part: int, columns: Sequence[str]) -> Any:
    """Some columns of one row group, a ``pyarrow.Table`` whose arrays are validated.

    Args:
        view: The file, at any position.
        footer: What `read_footer` gave; with it at hand, a reader for every call costs little, and
            one may not be shared between threads.
        part: The row group.
        columns: Names of columns, or of leaves such as ``image.bytes``.

    Raises:
        DamagedFile: It cannot be read.
    """
    import pyarrow.parquet as pq

    with damage():
        file = pq.ParquetFile(view, metadata=footer, page_checksum_verification=True)
        table = file.read_row_group(part, columns=list(columns), use_threads=False)
        table.validate(full=True)
    return table
