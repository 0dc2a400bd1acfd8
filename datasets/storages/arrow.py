"""Read and write records in the rows of Arrow files."""

from __future__ import annotations

import os
import threading
from collections.abc import Sequence
from functools import cached_property
from typing import Any

from penstock.core.registry import register
from penstock.core.sample import RecordError
from penstock.datasets.columnar.form import TableFile, TableForm, damage
from penstock.datasets.columnar.storage import TableStorage
from penstock.datasets.columnar.writer import TableWriter
from penstock.datasets.files.access import RangeFile, retried
from penstock.datasets.files.data_files import DataFiles, find_data_files

_MAGIC = b"ARROW1"
_MARK = b"\xff\xff\xff\xff"  # before the size of each part of a stream, since Arrow 0.15
_BATCH_BYTES = 4096  # of the objects that point into the file, for each batch


class ArrowFile(TableFile):
    """A mapped IPC file or stream, whose groups are its record batches."""

    def __init__(self, file: RangeFile, file_bytes: int = 0) -> None:
        import pyarrow as pa

        def mapped() -> Any:
            with damage(), pa.memory_map(file.path) as source:
                return source.read_buffer()

        self._lock = threading.Lock()
        self._memory: Any = retried(mapped, path=file.path, root=file.root)
        with damage():
            if self._memory[: len(_MAGIC)] == _MAGIC:
                reader = pa.ipc.open_file(self._memory)
                self._count, self._get = reader.num_record_batches, reader.get_batch
            else:
                stream = pa.BufferReader(self._memory)
                reader = pa.ipc.open_stream(stream)
                batches = list(reader)
                has_end = self._memory[:4] != _MARK or self._memory[-8:] == _MARK + bytes(4)
                if not has_end or stream.tell() < self._memory.size:
                    said = "the stream lacks its end mark, or has more bytes after it"
                    raise RecordError(f"{said}; close its writer, or copy the file again")
                self._count, self._get = len(batches), batches.__getitem__
            self.schema = reader.schema
        self.content = [self._memory.size]

    @cached_property
    def counts(self) -> list[int]:  # type: ignore[override]
        """Return the rows of the batches; decompresses compressed batches."""
        return [len(self._batch(number)) for number in range(self._count)]

    def read(self, group: int, columns: Sequence[str]) -> tuple[Any, int]:
        """Map columns of a record batch; compressed columns take memory."""
        import pyarrow as pa

        with damage():
            batch = self._batch(group).select(list(columns))
            batch.validate(full=True)
        start, stop = self._memory.address, self._memory.address + self._memory.size
        buffers = (b for column in batch.columns for b in column.buffers() if b is not None)
        own = sum(buffer.size for buffer in buffers if not start <= buffer.address <= stop)
        return pa.Table.from_batches([batch]), _BATCH_BYTES + own

    def _batch(self, number: int) -> Any:
        with self._lock, damage():
            return self._get(number)


class Arrow(TableForm):
    """Arrow IPC files; see `ArrowStorage` for the options."""

    name = "arrow"
    endings = (".arrow", ".feather", ".ipc")
    open = ArrowFile


@register("storage", "arrow")
class ArrowStorage(TableStorage):
    """Arrow IPC files and streams: every row is a record, every column a field of its name.

    The files are mapped into memory, and a row costs only its own bytes, or its record batch if
    that is compressed. Files behind a URL are copied and need a `root`.

    Args:
        path: A file (also Feather, version 2), a folder of these or of the public hub's
            ``save_to_disk``, or a pattern.
        image_column: The column of the field ``image``: images, or paths of files.
        label_column: The column of the field ``label``; an empty text: no labels.
        key_column: The column of the keys.
        length_column: Lists or integers: the index's column ``length``.
        columns: The columns to read; None: all.
        root: The folder, or URL, of relative image paths.
        classes: Class names by id.
        cache_bytes: Size of the cache of compressed record batches of each process.
    """

    name = "arrow"
    reads_urls = False
    form_class = Arrow

    def _find_files(self) -> DataFiles:
        if os.path.isfile(os.path.join(self.path, "dataset_dict.json")):
            raise ValueError(
                f"{self}: holds several splits; set dataset.storage.path to the folder of one"
            )
        if not os.path.isfile(os.path.join(self.path, "state.json")):
            return super()._find_files()
        # The hub's package may keep files of its cache beside the data.
        saved = os.path.join(self.path, "data-*.arrow")
        return find_data_files(saved, endings=self.form.endings, where=str(self))


@register("writer", "arrow")
class ArrowWriter(TableWriter):
    """A folder of Arrow IPC files, one for each part, with the columns of the Parquet writer."""

    ending = ".arrow"

    def _create(self, path: str, schema: Any) -> Any:
        import pyarrow as pa

        options = pa.ipc.IpcWriteOptions(compression=self.compression)
        return pa.ipc.new_file(path, schema, options=options)
