"""Read and write records in the rows of Parquet files."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from penstock.core.registry import register
from penstock.datasets.columnar.form import TableFile, TableForm, damage
from penstock.datasets.columnar.storage import TableStorage
from penstock.datasets.columnar.writer import TableWriter
from penstock.datasets.files.access import RangeFile, RangeStream


class ParquetFile(TableFile):
    """A file by its footer; each call opens a reader, since threads cannot share one."""

    def __init__(self, file: RangeFile, file_bytes: int) -> None:
        import pyarrow.parquet as pq

        self._file, self._file_bytes = file, file_bytes
        with damage():
            self._footer = pq.ParquetFile(RangeStream(file, file_bytes)).metadata
            self.schema = self._footer.schema.to_arrow_schema()
            groups = [self._footer.row_group(n) for n in range(self._footer.num_row_groups)]
        self.counts = [group.num_rows for group in groups]
        self.content = [group.total_byte_size for group in groups]

    def read(self, group: int, columns: Sequence[str]) -> tuple[Any, int]:
        """Read columns, only the bytes of image structs, and verify page checksums."""
        from penstock.datasets.columnar.schema import is_image

        leaves = [f"{n}.bytes" if is_image(self.schema.field(n).type) else n for n in columns]
        with damage():
            table = self._read(RangeStream(self._file, self._file_bytes), group, leaves)
            table.validate(full=True)
        return table, table.nbytes

    def may_have_nulls(self, group: int, name: str) -> bool:
        """Return whether the footer lacks a count of nulls, or counts any."""
        about, schema = self._footer.row_group(group), self._footer.schema
        for number in range(len(schema)):
            leaf = schema.column(number)
            if f"{leaf.path}.".startswith(f"{name}."):
                # Make the library itself parse the column's metadata, and no data: accessed from
                # Python, damaged metadata, or another type, end the process by a C++ exception.
                with suppress(_DataReached), damage():
                    self._read(_NoData(self._file, self._file_bytes), group, [leaf.path])
                column = about.column(number)
                counts = column.physical_type == leaf.physical_type and column.statistics
                if not counts or not counts.has_null_count or counts.null_count:
                    return True
        return False

    def _read(self, view: RangeStream, group: int, leaves: Sequence[str]) -> Any:
        import pyarrow.parquet as pq

        file = pq.ParquetFile(
            view,
            metadata=self._footer,
            page_checksum_verification=True,
            pre_buffer=False,  # reads in this thread, which counts the requests
        )
        return file.read_row_group(group, columns=list(leaves), use_threads=False)


class Parquet(TableForm):
    """Parquet files; see `ParquetStorage` for the options."""

    name = "parquet"
    endings = (".parquet", ".parq")
    open = ParquetFile


@register("storage", "parquet")
class ParquetStorage(TableStorage):
    """Parquet files: every row is a record, every column a field of its name.

    A record costs the columns of its row group, and the last groups stay cached. For shuffled
    reading, write small row groups (a hundred images). Image structs of ``bytes`` and ``path``, as
    the public hubs write them, give their bytes; lists of numbers are arrays.

    Args:
        path: A file, a folder of ``.parquet`` files, or a pattern such as ``data/train-*.parquet``.
        image_column: The column of images or their paths; None: ``image``, or the only images.
        label_column: The column of class ids or names; None: ``label``, or the only class labels
            of the hub's metadata; an empty text: no labels.
        key_column: The column of the keys; None: ``key``, else the images' paths, else row numbers.
        length_column: Lists or integers, by which samplers group similar lengths. None: ``tokens``,
            if it is a column of lists.
        columns: The columns to read; None: all.
        root: The folder, or URL, of image paths, which these may not leave (``/`` allows absolute
            paths); None: the folder of the files.
        classes: Class names by id; None: the names in the metadata, or in the labels.
        cache_bytes: Size of the cache of row groups of each process.
    """

    name = "parquet"
    form_class = Parquet


class _DataReached(Exception):
    """Raised when a library reads the data of a `_NoData` file."""


class _NoData(RangeStream):
    """A file whose reads raise `_DataReached`."""

    def read(self, size: int | None = -1) -> bytes:
        raise _DataReached


@register("writer", "parquet")
class ParquetWriter(TableWriter):
    """A folder of Parquet files in the layout of the public hubs, one for each part.

    Arrays of one dimension are lists. The column ``penstock_rest`` holds fields of other types.
    """

    ending = ".parquet"

    def _create(self, path: str, schema: Any) -> Any:
        import pyarrow.parquet as pq

        return pq.ParquetWriter(
            path,
            schema,
            compression=self.compression or "NONE",
            use_dictionary=False,
            write_page_checksum=True,
        )
