"""Record batches of Arrow IPC files and streams, mapped into memory and checked before use.

Both are made of the same messages (Arrow columnar format, "Serialization and Interprocess
Communication"): a file has a footer that says where its batches are, in a stream one message
leads to the next.
"""

from __future__ import annotations

import threading
from typing import Any

from datasets.formats.arrow_damage import DamagedFile, damage

_MAGIC = b"ARROW1"
# What a mapped batch costs: the objects that point into the file.
_MAPPED_BATCH_BYTES = 4096


class ArrowFile:
    """An IPC file or stream whose batches can be had in any order, from any thread.

    A stream is walked through when it is opened, from message to message without their data;
    one with dictionary columns keeps all its batches, which costs memory if it is compressed.

    Args:
        path: The file.

    Raises:
        DamagedFile: It is neither, or is cut short.
        FileNotFoundError: There is no such file.
    """

    def __init__(self, path: str) -> None:
        import pyarrow as pa

        self._lock = threading.Lock()
        self._reader: Any = None
        self._batches: list[Any] = []
        self._offsets: list[int] = []
        with damage(), pa.memory_map(path) as source:
            self._memory = source.read_buffer()
        with damage():
            if self._memory.size >= len(_MAGIC) and self._memory[: len(_MAGIC)] == _MAGIC:
                self._reader = pa.ipc.open_file(self._memory)
                self.schema = self._reader.schema
            else:
                self._walk()

    @property
    def num_batches(self) -> int:
        """Number of record batches."""
        if self._reader is not None:
            return int(self._reader.num_record_batches)
        return len(self._batches or self._offsets)

    def batch(self, part: int, columns: list[str] | None = None) -> tuple[Any, int]:
        """A record batch, and the bytes of memory that it holds on to.

        Args:
            part: Its number in the file.
            columns: Columns that are to be checked; None: all.

        Raises:
            DamagedFile: It cannot be read.
        """
        import pyarrow as pa

        with damage():
            if self._reader is not None:
                with self._lock:
                    batch = self._reader.get_batch(part)
            elif self._batches:
                batch = self._batches[part]
            else:
                message = pa.ipc.read_message(self._memory.slice(self._offsets[part]))
                batch = pa.ipc.read_record_batch(message, self.schema)
            if columns is not None:
                batch = batch.select(columns)
            batch.validate(full=True)
        return batch, _MAPPED_BATCH_BYTES if self._is_mapped(batch) else batch.nbytes

    def _walk(self) -> None:
        """Find the messages of a stream."""
        import pyarrow as pa

        source = pa.BufferReader(self._memory)
        reader = pa.ipc.MessageReader.open_stream(source)
        first = next(iter(reader), None)
        if first is None or first.type != "schema":
            raise DamagedFile("neither an Arrow file nor a stream: it begins with no schema")
        self.schema = pa.ipc.read_schema(first)
        if any(_has_dictionary(field.type) for field in self.schema):
            self._batches = list(pa.ipc.open_stream(self._memory))
            return
        at = source.tell()
        for message in reader:
            if message.type != "record batch":
                raise DamagedFile(f"a message in it is a {message.type}")
            self._offsets.append(at)
            at = source.tell()

    def _is_mapped(self, batch: Any) -> bool:
        start, stop = self._memory.address, self._memory.address + self._memory.size
        buffers = (b for column in batch.columns for b in column.buffers() if b is not None)
        return all(start <= buffer.address <= stop for buffer in buffers if buffer.size)


def _has_dictionary(kind: Any) -> bool:
    import pyarrow as pa

    if pa.types.is_dictionary(kind):
        return True
    return any(_has_dictionary(kind.field(i).type) for i in range(kind.num_fields))
