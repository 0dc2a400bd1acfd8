"""Records in the rows of Arrow files."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

from datasets.data_files import DataFiles
from datasets.file_reader import retried
from datasets.formats.arrow_files import ArrowFile
from datasets.formats.arrow_lengths import row_lengths
from datasets.formats.arrow_roles import Roles
from datasets.formats.saved_folder import saved_files
from datasets.shared_file import OpenFiles
from datasets.table_storage import Survey, TableFile, TableStorage
from pipeline.registry import register


@register("storage", "arrow")
class ArrowStorage(TableStorage):
    """Arrow IPC files and streams: every row is a record, every column a field of its name.

    The files are mapped into memory, and a row costs its own bytes alone; where the buffers are
    compressed, it costs its whole record batch, and those used last are kept. Before a process
    first uses a record batch it checks that all its places lie inside.

    Image structs of ``bytes`` and ``path``, as the public hubs write them, give their bytes; lists
    of numbers are arrays, times whole numbers in the column's unit.

    Args:
        path: A file (Feather, version 2, is one); a folder of ``.arrow``, ``.feather`` or ``.ipc``
            files, or one that ``save_to_disk`` of the public hub wrote; or a pattern such as
            ``train-*.arrow``.
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
        cache_bytes: How much of compressed record batches is kept, for each process.
    """

    name = "arrow"
    endings = (".arrow", ".feather", ".ipc")
    group_name = "record batch"

    @staticmethod
    def _open_file(files: OpenFiles, name: str, size_bytes: int) -> TableFile:
        path = os.path.join(files.root, name)
        return _MappedFile(retried(lambda: ArrowFile(path), path=path, root=files.root), size_bytes)

    def _find_files(self) -> DataFiles:
        saved = saved_files(self.path, where=str(self)) if os.path.isdir(self.path) else None
        return saved or super()._find_files()


class _MappedFile:
    """A file whose groups are its record batches."""

    size_bytes = 64 << 10  # what the objects around a mapping may come to

    def __init__(self, file: ArrowFile, file_bytes: int) -> None:
        self._file = file
        self._file_bytes = file_bytes
        self.schema = file.schema
        self.num_groups = file.num_batches

    def survey(self, columns: Sequence[str], lengths: str | None) -> Survey:
        """Look at all batches, and check some columns of them."""
        wanted = [*columns, *([] if lengths is None or lengths in columns else [lengths])]
        found = Survey([], [self._file_bytes], {name: [] for name in columns})
        for part in range(self.num_groups):
            batch, _ = self._file.batch(part, wanted)
            found.rows.append(batch.num_rows)
            for name in columns:
                found.columns[name].append(batch.column(name))
            if lengths is not None:
                found.lengths.append(row_lengths(batch.column(lengths)))
        return found

    def read_group(self, part: int, roles: Roles) -> tuple[Sequence[Any], int]:
        """A record batch, mapped."""
        batch, size_bytes = self._file.batch(part, list(roles.fields))
        return [batch], size_bytes
