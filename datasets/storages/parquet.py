"""Records in the rows of Parquet files."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

from annotated_types import Ge

from penstock.core.registry import register
from penstock.core.sample import too_large
from penstock.datasets.columnar.roles import Roles
from penstock.datasets.columnar.storage import TableFile, TableStorage
from penstock.datasets.columnar.values import DamagedFile, damage
from penstock.datasets.columnar.writer import TableWriter
from penstock.datasets.files.access import FileView, OpenFiles


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
        image_column: The column of the field ``image``; None: ``image``, or the only one with
            images.
        label_column: The column of the field ``label``: class ids or names; None: ``label``, or
            the only one that the hub's metadata calls class labels.
        key_column: The column of the keys; None: ``key``, or without one the numbers of the rows,
            over all files in the order of their names.
        length_column: Lists, whose elements are counted when the data is first opened, or whole
            numbers: the index's column ``length``, by which samplers put like lengths together.
            None: ``tokens``, where that is a column of lists.
        columns: The columns that are read; None: all.
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

    def groups(self) -> tuple[list[int], list[int]]:
        """Take rows and sizes from the footer."""
        parts = [self._footer.row_group(part) for part in range(self.num_groups)]
        return [part.num_rows for part in parts], [part.total_byte_size for part in parts]

    def column(self, name: str) -> Iterator[Any]:
        """Read a column, a row group at a time: there may be room for no more."""
        for part, rows in enumerate(self.groups()[0]):
            table = read_group(self._view(), self._footer, part, [name])
            if len(table) != rows:
                raise DamagedFile(f"column {name!r} has {len(table):,} of {rows:,} rows")
            yield from table.column(name).chunks

    def read_group(self, part: int, roles: Roles) -> tuple[Sequence[Any], int]:
        """The columns of a row group that records are made of."""
        group = self._footer.row_group(part)
        columns = (group.column(n).total_uncompressed_size for n in range(group.num_columns))
        each = max(group.total_byte_size, *columns) // max(group.num_rows, 1)
        if each > self._max_bytes:
            raise DamagedFile(f"on average a record {too_large(each, self._max_bytes)}")
        table = read_group(self._view(), self._footer, part, roles.leaves)
        return table.to_batches(), table.nbytes

    def _view(self) -> FileView:
        return FileView(self._files[self._name], self._file_bytes)


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
