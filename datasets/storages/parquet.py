"""Records in the rows of Parquet files."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from datasets.formats.arrow_lengths import row_lengths
from datasets.formats.arrow_roles import Roles
from datasets.formats.parquet_files import read_column, read_footer, read_group
from datasets.shared_file import FileView, OpenFiles
from datasets.table_storage import Survey, TableFile, TableStorage
from pipeline.registry import register

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


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

    @staticmethod
    def _open_file(files: OpenFiles, name: str, size_bytes: int) -> TableFile:
        return _FooterFile(files, name, size_bytes)


class _FooterFile:
    """A file whose footer is kept; its handle may be closed between reads."""

    def __init__(self, files: OpenFiles, name: str, file_bytes: int) -> None:
        self._files = files
        self._name = name
        self._file_bytes = file_bytes
        self._footer = read_footer(self._view())
        self.size_bytes = self._footer.serialized_size
        self.schema = self._footer.schema.to_arrow_schema()
        self.num_groups = self._footer.num_row_groups

    def survey(self, columns: Sequence[str], lengths: str | None) -> Survey:
        """Take rows and sizes from the footer, and read some columns."""
        parts = [self._footer.row_group(i) for i in range(self.num_groups)]
        return Survey(
            [part.num_rows for part in parts],
            [part.total_byte_size for part in parts],
            {name: read_column(self._view(), self._footer, name).chunks for name in columns},
            [] if lengths is None else [self._lengths(i, lengths) for i in range(self.num_groups)],
        )

    def _lengths(self, part: int, name: str) -> NDArray[np.int64]:
        """Of one row group: there is room for no more of it than that."""
        table = read_group(self._view(), self._footer, part, [name])
        return row_lengths(table.column(name))

    def read_group(self, part: int, roles: Roles) -> tuple[Sequence[Any], int]:
        """The columns of a row group that records are made of."""
        table = read_group(self._view(), self._footer, part, roles.leaves)
        return table.to_batches(), table.nbytes

    def _view(self) -> FileView:
        return FileView(self._files[self._name], self._file_bytes)
