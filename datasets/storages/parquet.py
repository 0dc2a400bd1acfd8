"""Read and write records in the rows of Parquet files."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Annotated, Any, Literal

from annotated_types import Ge

from penstock.core.registry import register
from penstock.core.sample import RecordError
from penstock.core.stage_times import counted, traffic
from penstock.datasets.columnar.form import TableFile, TableForm
from penstock.datasets.columnar.storage import TableStorage
from penstock.datasets.columnar.writer import TableWriter
from penstock.datasets.files.access import RangeFile, RangeStream


class Parquet(TableForm):
    """Parquet files; see `ParquetStorage` for the options."""

    name = "parquet"
    endings = (".parquet", ".parq")
    group_name = "row group"

    def open(self, file: RangeFile, file_bytes: int) -> TableFile:
        """Read the footer."""
        return ParquetFile(file, file_bytes)


@register("storage", "parquet")
class ParquetStorage(TableStorage):
    """Parquet files: every row is a record, every column a field of its name.

    The format is read by row group: a record costs the columns of its whole group. A batch reads
    each group that it touches once, and the last groups stay cached, so reading in order reads
    every group once. For shuffled reading, write small row groups (a hundred images), cache all
    of the data, or pack it.

    Image structs of ``bytes`` and ``path``, as the public hubs write them, give their bytes; lists
    of numbers are arrays, times integers in the column's unit. Page checksums are verified.

    Args:
        path: A file, a folder of ``.parquet`` files, or a pattern such as ``data/train-*.parquet``.
        image_column: The column of the field ``image``: images, or paths of files; None: ``image``,
            or the only column of images.
        label_column: The column of the field ``label``: class ids or names; None: ``label``, or the
            only column of class labels in the hub's metadata; an empty text: no labels.
        key_column: The column of the keys; None: ``key``, else the images' paths, else row numbers
            over all files in the order of their names.
        length_column: Lists, whose elements are counted on first use, or integers: the index's
            column ``length``, by which samplers group similar lengths. None: ``tokens``, if it is a
            column of lists.
        columns: The columns to read; None: all.
        root: The folder, or URL, of relative image paths, which these may not leave; None: the
            folder of the files. ``/`` allows absolute paths.
        follow_symlinks: Follow links of images to outside of `root`.
        classes: Class names by id; None: the names in the metadata, or in the labels.
        cache_bytes: Size of the cache of row groups of each process.
    """

    name = "parquet"
    reads_urls = True
    form_class = Parquet


class ParquetFile(TableFile):
    """A file by its footer; each call opens a reader, since threads cannot share one."""

    def __init__(self, file: RangeFile, file_bytes: int) -> None:
        import pyarrow.parquet as pq

        from penstock.datasets.columnar.group import damage

        self._file, self._file_bytes = file, file_bytes
        with damage():
            self._footer = pq.ParquetFile(self._view()).metadata
            self._file.close()  # as after each read, because many footers stay cached
            self.schema = self._footer.schema.to_arrow_schema()
            groups = [self._footer.row_group(n) for n in range(self._footer.num_row_groups)]
        self.num_groups = len(groups)
        self.counts = [group.num_rows for group in groups]
        self.content = [group.total_byte_size for group in groups]
        self.size_bytes = self._footer.serialized_size
        self._checked: set[tuple[int | str, ...]] = set()  # groups and their columns

    def read(
        self, group: int, columns: Sequence[str], images: Collection[str] = ()
    ) -> tuple[Any, int]:
        """Read columns, and verify page checksums."""
        import pyarrow.parquet as pq

        from penstock.datasets.columnar.group import damage

        leaves = [f"{name}.bytes" if name in images else name for name in columns]
        if (group, *leaves) not in self._checked:
            self._check(group, leaves)
            self._checked.add((group, *leaves))
        with damage():
            file = pq.ParquetFile(
                self._view(), metadata=self._footer, page_checksum_verification=True
            )
            table = file.read_row_group(group, columns=leaves, use_threads=False)
            table.validate(full=True)
        self._file.close()
        return table, table.nbytes

    def has_nulls(self, group: int, name: str) -> bool:
        """Return whether a column has nulls, by the footer's count or else by the values."""
        self._check(group, [name])
        about = [self._footer.row_group(group).column(n) for n in self._leaves([name])]
        counts = [column.statistics for column in about]
        if all(c is not None and c.has_null_count and not c.null_count for c in counts):
            return False
        return super().has_nulls(group, name)

    def _leaves(self, names: Sequence[str]) -> list[int]:
        """Return the numbers of the stored leaf columns of columns."""
        paths = [column.path for column in self._footer.schema]
        starts = tuple(f"{name}." for name in names)
        return [n for n, path in enumerate(paths) if f"{path}.".startswith(starts)]

    def _check(self, group: int, leaves: Sequence[str]) -> None:
        """Raise RecordError for columns whose metadata is damaged."""
        import pyarrow.parquet as pq

        from penstock.datasets.columnar.group import damage

        # Make the library itself parse the footer's column metadata, and no data: accessed from
        # Python, damaged metadata ends the process by a C++ exception.
        with suppress(_DataReached), damage():
            file = pq.ParquetFile(
                _NoData(self._file_bytes), metadata=self._footer, buffer_size=4096
            )
            file.read_row_group(group, columns=list(leaves), use_threads=False)
        about = self._footer.row_group(group)
        for number in self._leaves(leaves):
            column = about.column(number)
            if column.physical_type != self._footer.schema.column(number).physical_type:
                # Reading the statistics would end the process.
                raise RecordError(
                    f"column {column.path_in_schema!r} differs in type from the schema"
                )

    def _view(self) -> RangeStream:
        return _CountedView(self._file, self._file_bytes)


class _DataReached(Exception):
    """Raised when a library reads the data of a `_NoData` file."""


class _NoData(RangeStream):
    """A file whose reads raise `_DataReached`."""

    def __init__(self, size_bytes: int) -> None:
        super().__init__(RangeFile("", root=""), size_bytes)

    def read(self, size: int | None = -1) -> bytes:
        """Raise `_DataReached`."""
        raise _DataReached


class _CountedView(RangeStream):
    """A file that counts reads as requests of the thread that made it, since Arrow has its own."""

    def __init__(self, file: RangeFile, size_bytes: int) -> None:
        super().__init__(file, size_bytes)
        self._asked = traffic()

    def read(self, size: int | None = -1) -> bytes:
        """Return the next `size` bytes; fewer at the end."""
        if traffic() is self._asked:
            return super().read(size)
        with counted() as asked:
            value = super().read(size)
        self._asked.add(asked)
        return value


@register("writer", "parquet")
class ParquetWriter(TableWriter):
    """A folder of Parquet files in the layout of the public hubs, one for each part.

    Images are structs of ``bytes`` and ``path``, class names are in the hub's metadata, arrays are
    lists, and all other fields are in the column ``penstock_rest``. Pages have checksums.

    Args:
        group_rows: Records of a row group, the unit of reading: small for shuffled reading.
        part_records: Maximum records of a file.
        compression: Of all columns: worth it for arrays and texts, but not for image files, which
            are compressed already. None: uncompressed.
    """

    ending = ".parquet"

    def __init__(
        self,
        *,
        group_rows: Annotated[int, Ge(1)] = 100,
        part_records: Annotated[int, Ge(1)] = 10_000,
        compression: Literal["zstd", "lz4", "snappy", "gzip"] | None = None,
    ) -> None:
        self.group_rows = group_rows
        self.part_records = part_records
        self.compression = compression

    @contextmanager
    def _open_file(self, path: Path, schema: Any) -> Iterator[Callable[[Any], None]]:
        import pyarrow as pa
        import pyarrow.parquet as pq

        with pq.ParquetWriter(
            path,
            schema,
            compression=self.compression or "NONE",
            use_dictionary=False,
            write_page_checksum=True,
        ) as file:
            yield lambda batch: file.write_table(
                pa.Table.from_batches([batch]), row_group_size=len(batch)
            )
