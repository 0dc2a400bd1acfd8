"""Read and write records in the rows of Arrow files."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, Literal

from annotated_types import Ge

from penstock.core.json_text import parse_json
from penstock.core.registry import register
from penstock.datasets.columnar.form import TableFile, TableForm
from penstock.datasets.columnar.storage import TableStorage
from penstock.datasets.columnar.writer import TableWriter
from penstock.datasets.files.access import RangeFile, retried
from penstock.datasets.files.data_files import DataFiles, find_data_files

_MAGIC = b"ARROW1"
_MAPPED_BATCH_BYTES = 4096  # of the objects that point into the file, for each batch
_OPEN_BYTES = 64 << 10  # of the objects around a mapping


class ArrowFile(TableFile):
    """A mapped IPC file or stream, whose groups are its record batches.

    Opening a stream finds its batches.

    Raises:
        RecordError: The file is neither, or is truncated.
        FileNotFoundError: The file is missing.
    """

    size_bytes = _OPEN_BYTES

    def __init__(self, path: str) -> None:
        import pyarrow as pa

        from penstock.datasets.columnar.group import damage

        self._lock = threading.Lock()
        self._reader: Any = None
        with damage(), pa.memory_map(path) as source:
            self._memory = source.read_buffer()
        with damage():
            if self._memory.size >= len(_MAGIC) and self._memory[: len(_MAGIC)] == _MAGIC:
                self._reader = pa.ipc.open_file(self._memory)
                self.schema = self._reader.schema
                self.num_groups = self._reader.num_record_batches
            else:
                stream = pa.ipc.open_stream(self._memory)
                self.schema = stream.schema
                self._batches = list(stream)
                self.num_groups = len(self._batches)
        self.content = [self._memory.size]

    @cached_property
    def counts(self) -> list[int]:  # type: ignore[override]
        """Return the rows of the batches; decompresses compressed batches."""
        return [self._batch(number).num_rows for number in range(self.num_groups)]

    def read(
        self, group: int, columns: Sequence[str], images: Collection[str] = ()
    ) -> tuple[Any, int]:
        """Map columns of a record batch; compressed columns take memory."""
        import pyarrow as pa

        from penstock.datasets.columnar.group import damage

        with damage():
            batch = self._batch(group).select(list(columns))
            batch.validate(full=True)
        size_bytes = _MAPPED_BATCH_BYTES if self._is_mapped(batch) else batch.nbytes
        return pa.Table.from_batches([batch]), size_bytes

    def _batch(self, number: int) -> Any:
        from penstock.datasets.columnar.group import damage

        if self._reader is None:
            return self._batches[number]
        with self._lock, damage():
            return self._reader.get_batch(number)

    def _is_mapped(self, batch: Any) -> bool:
        start, stop = self._memory.address, self._memory.address + self._memory.size
        buffers = (b for column in batch.columns for b in column.buffers() if b is not None)
        return all(start <= buffer.address <= stop for buffer in buffers if buffer.size)


class Arrow(TableForm):
    """Arrow IPC files; see `ArrowStorage` for the options."""

    name = "arrow"
    endings = (".arrow", ".feather", ".ipc")
    group_name = "record batch"

    def open(self, file: RangeFile, file_bytes: int) -> TableFile:
        """Map the file."""
        path = file.path
        return retried(lambda: ArrowFile(path), path=path, root=file.root)


@register("storage", "arrow")
class ArrowStorage(TableStorage):
    """Arrow IPC files and streams: every row is a record, every column a field of its name.

    The files are mapped into memory, and a row costs only its own bytes. In compressed files it
    costs its whole record batch, and the last batches stay cached. Before a process
    first uses a record batch, it checks that all offsets lie inside.

    Image structs of ``bytes`` and ``path``, as the public hubs write them, give their bytes; lists
    of numbers are arrays, times integers in the column's unit.

    Args:
        path: A file (including Feather, version 2); a folder of ``.arrow``, ``.feather`` or
            ``.ipc`` files, or a folder of the public hub's ``save_to_disk``; or a pattern such as
            ``train-*.arrow``.
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
            folder of the files. Required for files behind a URL, which are copied. ``/`` allows
            absolute paths.
        follow_symlinks: Follow links of images to outside of `root`.
        classes: Class names by id; None: the names in the metadata, or in the labels.
        cache_bytes: Size of the cache of compressed record batches of each process.
    """

    name = "arrow"
    reads_urls = False
    form_class = Arrow

    def _find_files(self) -> DataFiles:
        """Find the files; those of `save_to_disk` are named by ``state.json``."""
        if os.path.isfile(os.path.join(self.path, "dataset_dict.json")):
            raise ValueError(
                f"{self}: holds several splits; set dataset.storage.path to the folder of one"
            )
        state = Path(self.path, "state.json")
        if not state.is_file():
            return super()._find_files()
        try:
            entries = parse_json(state.read_bytes())["_data_files"]
            names = [os.path.basename(entry["filename"]) for entry in entries]
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise ValueError(
                f"{self}: state.json is damaged ({type(error).__name__}: {error}); copy the folder "
                f"again"
            ) from error
        paths = [os.path.join(self.path, name) for name in names]
        return find_data_files(paths, endings=self.form.endings, where=str(self))


@register("writer", "arrow")
class ArrowWriter(TableWriter):
    """A folder of Arrow IPC files, one for each part, with the columns of the Parquet writer.

    Args:
        group_rows: Records of a record batch.
        part_records: Maximum records of a file.
        compression: Of all columns: worth it for arrays and texts, but not for image files. None:
            uncompressed, so that a record is read without the rest of its record batch.
    """

    ending = ".arrow"

    def __init__(
        self,
        *,
        group_rows: Annotated[int, Ge(1)] = 1000,
        part_records: Annotated[int, Ge(1)] = 10_000,
        compression: Literal["zstd", "lz4"] | None = None,
    ) -> None:
        self.group_rows = group_rows
        self.part_records = part_records
        self.compression = compression

    @contextmanager
    def _open_file(self, path: Path, schema: Any) -> Iterator[Callable[[Any], None]]:
        import pyarrow as pa

        options = pa.ipc.IpcWriteOptions(compression=self.compression)
        with (
            pa.OSFile(str(path), "wb") as sink,
            pa.ipc.new_file(sink, schema, options=options) as file,
        ):
            yield file.write_batch
