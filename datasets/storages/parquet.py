"""Records in the rows of Parquet files."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Annotated, Any, Literal

from annotated_types import Ge

from penstock.core.registry import register
from penstock.core.sample import RecordError, inflated_too_large, too_large
from penstock.core.stage_times import counted, traffic
from penstock.datasets.columnar.roles import Roles, has_nulls
from penstock.datasets.columnar.storage import TableFile, TableStorage
from penstock.datasets.columnar.values import damage
from penstock.datasets.columnar.writer import TableWriter
from penstock.datasets.files.access import OpenFiles, RangeFile, RangeStream

_VALUE_BYTES = {"FLOAT": 4, "DOUBLE": 8, "INT64": 8}  # at least


def read_footer(view: RangeStream) -> Any:
    """The footer, a ``pyarrow.parquet.FileMetaData``.

    Raises:
        RecordError: There is none.
    """
    import pyarrow.parquet as pq

    with damage():
        footer = pq.ParquetFile(view).metadata
        # Read here, because a schema may be wrong in a way that only its use shows.
        footer.schema.to_arrow_schema()
        return footer


def read_group(view: RangeStream, footer: Any, part: int, columns: Sequence[str]) -> Any:
    """Some columns of one row group, a ``pyarrow.Table`` whose arrays are validated.

    Args:
        view: The file, at any position.
        footer: What `read_footer` gave; with it at hand, a reader for every call costs little, and
            one may not be shared between threads.
        part: The row group.
        columns: Names of columns, or of leaves such as ``image.bytes``.

    Raises:
        RecordError: It cannot be read.
    """
    import pyarrow.parquet as pq

    with damage():
        file = pq.ParquetFile(view, metadata=footer, page_checksum_verification=True)
        table = file.read_row_group(part, columns=list(columns), use_threads=False)
        table.validate(full=True)
    return table


def check_columns(footer: Any, file_bytes: int, part: int, columns: Sequence[str]) -> None:
    """Let the library look at what the footer says of some columns of a row group, and no further.

    Asked for it from Python, it ends the process where that is damaged: by an exception of C++ that
    nobody catches.

    Raises:
        RecordError: It is damaged.
    """
    import pyarrow.parquet as pq

    with suppress(_DataReached), damage():
        # A buffered column is read when all have been looked at.
        file = pq.ParquetFile(_NoData(file_bytes), metadata=footer, buffer_size=4096)
        file.read_row_group(part, columns=list(columns), use_threads=False)


class _DataReached(Exception):
    """A library wants data of a file that gives none."""


class _NoData(RangeStream):
    """A file that gives no data."""

    def __init__(self, size_bytes: int) -> None:
        super().__init__(RangeFile("", root=""), size_bytes)

    def read(self, size: int | None = -1) -> bytes:
        """Raise `_DataReached`."""
        raise _DataReached


class _CountedView(RangeStream):
    """A file whose reads count as asked for by the thread that made it: Arrow has its own."""

    def __init__(self, file: RangeFile, size_bytes: int) -> None:
        super().__init__(file, size_bytes)
        self._asked = traffic()

    def read(self, size: int | None = -1) -> bytes:
        """The next `size` bytes; fewer at the end."""
        if traffic() is self._asked:
            return super().read(size)
        with counted() as asked:
            value = super().read(size)
        self._asked.add(asked)
        return value


@register("storage", "parquet")
class ParquetStorage(TableStorage):
    """Parquet files: every row is a record, every column a field of its name.

    The format is read in row groups: a record costs the columns of its whole group. A batch reads
    each group that it touches once, and the groups used last are kept, so reading in order costs
    every group once. For shuffled reading, write small row groups (a hundred images), or give
    the cache room for the data, or pack it.

    Image structs of ``bytes`` and ``path``, as the public hubs write them, give their bytes; lists
    of numbers are arrays, times whole numbers in the column's unit. Pages that have checksums are
    compared with them.

    Args:
        path: A file, a folder of ``.parquet`` files, or a pattern such as ``data/train-*.parquet``.
        image_column: The column of the field ``image``: images, or texts that are the paths of
            files; None: ``image``, or the only one with images.
        label_column: The column of the field ``label``: class ids or names; None: ``label``, or
            the only one that the hub's metadata calls class labels; an empty text: no labels.
        key_column: The column of the keys; None: ``key``, else the images' paths, or without these
            the numbers of the rows, over all files in the order of their names.
        length_column: Lists, whose elements are counted when the data is first opened, or whole
            numbers: the index's column ``length``, by which samplers put like lengths together.
            None: ``tokens``, where that is a column of lists.
        columns: The columns that are read; None: all.
        root: The folder, or URL, that the paths of images are relative to, and may not leave; None:
            the folder of the files. ``/`` takes absolute paths.
        follow_symlinks: Read images that lie elsewhere by a link.
        classes: Class names by id; None: those of the metadata, or those found.
        cache_bytes: How much of the row groups used last is kept, for each process.
    """

    name = "parquet"
    endings = (".parquet", ".parq")
    group_name = "row group"
    reads_urls = True

    def _open_file(self, files: OpenFiles, name: str, size_bytes: int) -> TableFile:
        return _FooterFile(files, name, size_bytes, self.max_record_bytes)


class _FooterFile:
    """A file whose footer is kept; its handle may be closed between reads."""

    def __init__(self, files: OpenFiles, name: str, file_bytes: int, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._files = files
        self._name = name
        self._file_bytes = file_bytes
        self._footer = read_footer(self._view())
        self.size_bytes = self._footer.serialized_size
        self.schema = self._footer.schema.to_arrow_schema()
        self.num_groups = self._footer.num_row_groups
        self._checked: set[tuple[int | str, ...]] = set()  # groups, and columns of them

    def groups(self) -> tuple[list[int], list[int]]:
        """Take rows and sizes from the footer."""
        parts = [self._footer.row_group(part) for part in range(self.num_groups)]
        return [part.num_rows for part in parts], [part.total_byte_size for part in parts]

    def column(self, name: str) -> Iterator[Any]:
        """Read a column, a row group at a time: there may be room for no more."""
        for part, rows in enumerate(self.groups()[0]):
            self._refuse_large(part, [name])
            table = read_group(self._view(), self._footer, part, [name])
            if len(table) != rows:
                raise RecordError(f"column {name!r} has {len(table):,} of {rows:,} rows")
            yield from table.column(name).chunks

    def has_nulls(self, name: str) -> bool:
        """Return whether a row group that can be read has a null in a column."""
        return any(self._group_has_nulls(part, name) for part in range(self.num_groups))

    def _group_has_nulls(self, part: int, name: str) -> bool:
        """Look at the footer's count of nulls; without one, and for lists, at the values."""
        with suppress(RecordError):  # its rows are bad records
            self._refuse_large(part, [name])
            group, schema = self._footer.row_group(part), self._footer.schema
            leaves = [
                n for n in range(len(schema)) if f"{schema.column(n).path}.".startswith(f"{name}.")
            ]
            counts = [group.column(n).statistics for n in leaves]
            if all(c is not None and c.has_null_count and not c.null_count for c in counts):
                return False
            table = read_group(self._view(), self._footer, part, [name])
            return any(map(has_nulls, table.column(name).chunks))
        return False

    def read_group(self, part: int, roles: Roles) -> tuple[Sequence[Any], int]:
        """The columns of a row group that records are made of."""
        self._refuse_large(part, roles.leaves)
        table = read_group(self._view(), self._footer, part, roles.leaves)
        return table.to_batches(), table.nbytes

    def _refuse_large(self, part: int, leaves: Sequence[str]) -> None:
        """Raise RecordError where columns would take absurdly much memory, or are damaged."""
        if (part, *leaves) in self._checked:
            return
        check_columns(self._footer, self._file_bytes, part, leaves)
        group, schema, largest = self._footer.row_group(part), self._footer.schema, 0
        for number in range(len(schema)):
            path = schema.column(number).path
            if not any(path == leaf or path.startswith(f"{leaf}.") for leaf in leaves):
                continue
            column = group.column(number)
            # Equal values are stored once, and take their memory all the same.
            values = column.num_values * _VALUE_BYTES.get(column.physical_type, 1)
            size_bytes = max(column.total_uncompressed_size, values)
            stored_bytes = column.total_compressed_size
            if fault := inflated_too_large(size_bytes, stored_bytes, self._max_bytes):
                raise RecordError(f"column {path!r}: {fault}")
            largest = max(largest, size_bytes)
        each = max(group.total_byte_size, largest) // max(group.num_rows, 1)
        if each > self._max_bytes:
            raise RecordError(f"on average a record {too_large(each, self._max_bytes)}")
        self._checked.add((part, *leaves))

    def _view(self) -> _CountedView:
        return _CountedView(self._files[self._name], self._file_bytes)


@register("writer", "parquet")
class ParquetWriter(TableWriter):
    """A folder of Parquet files in the layout of the public hubs, one for each part.

    Images are structs of ``bytes`` and ``path``, class names are in the hub's metadata, arrays are
    lists, and whatever a record has beside lies in the column ``penstock_rest``. Pages have
    checksums.

    Args:
        group_rows: Records of a row group, which the format reads as one: few of them for
            shuffled reading.
        part_records: The most records of a file.
        compression: Of all columns: worth it for arrays and texts, and not for images' files, which
            are compressed already. None: as they are.
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
