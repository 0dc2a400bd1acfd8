"""Where the one record batch of an Arrow file lies, found without importing pyarrow.

Mapping columns takes a few numbers of the file's footer, and pyarrow takes 27 MB. The footer and
the messages are flatbuffers (flatbuffers.dev, "Internals"), as the specification says under
"Arrow Columnar Format", "IPC File Format"; the numbers of fields are those of its files
``File.fbs``, ``Schema.fbs`` and ``Message.fbs``.
"""

from __future__ import annotations

import mmap
import struct
from dataclasses import dataclass
from typing import Any

_MAGIC = b"ARROW1"
_CONTINUATION = 0xFFFFFFFF


@dataclass(frozen=True, slots=True)
class ArrowBatch:
    """The only record batch of an Arrow file.

    Attributes:
        num_rows: Its rows.
        buffers: Place and size of every buffer in the file, bytes, in the order of the columns;
            of a column of numbers validity and values, of one of texts validity, offsets, bytes.
        metadata: What was written with the schema.
    """

    num_rows: int
    buffers: tuple[tuple[int, int], ...]
    metadata: dict[bytes, bytes]


def read_batch(memory: mmap.mmap) -> ArrowBatch:
    """Find the record batch of a mapped Arrow file.

    Raises:
        ValueError: It is no Arrow file, damaged, or of more than one record batch.
    """
    end = len(memory) - len(_MAGIC) - 4
    if not memory[: len(_MAGIC)] == memory[end + 4 :] == _MAGIC:
        raise ValueError("no Arrow file, or cut short")
    [footer_bytes] = _unpack("<i", memory, end)
    footer = _Table.root(memory, end - footer_bytes)
    blocks = footer.structs(3, "<qi4xq")
    if len(blocks) != 1:
        raise ValueError("not one record batch")
    [(start, head_bytes, _)] = blocks
    mark, _ = _unpack("<Ii", memory, start)
    if mark != _CONTINUATION:
        raise ValueError("its record batch is damaged")
    batch = _Table.root(memory, start + 8).table(2)
    return ArrowBatch(
        num_rows=batch.number(0, "<q"),
        buffers=tuple(
            (start + head_bytes + offset, size) for offset, size in batch.structs(2, "<qq")
        ),
        metadata={pair.text(0): pair.text(1) for pair in footer.table(1).tables(2)},
    )


class _Table:
    """A table of a flatbuffer: its fields by number, wherever they lie."""

    def __init__(self, memory: mmap.mmap, at: int) -> None:
        self._memory = memory
        self._at = at
        self._fields = at - _unpack("<i", memory, at)[0]

    @classmethod
    def root(cls, memory: mmap.mmap, at: int) -> _Table:
        """The table that a flatbuffer begins with."""
        return cls(memory, _pointed(memory, at))

    def number(self, field: int, layout: str) -> int:
        """A number; 0 where it was left out."""
        at = self._place(field)
        return 0 if at is None else int(_unpack(layout, self._memory, at)[0])

    def table(self, field: int) -> _Table:
        """A table, which must be there."""
        at = self._place(field)
        if at is None:
            raise ValueError("a part is missing")
        return _Table(self._memory, _pointed(self._memory, at))

    def text(self, field: int) -> bytes:
        """A string's bytes; none where it was left out."""
        start, count = self._vector(field)
        return self._memory[start : start + count]

    def structs(self, field: int, layout: str) -> list[tuple[Any, ...]]:
        """The items of a vector of structs."""
        start, count = self._vector(field)
        size = struct.calcsize(layout)
        return [_unpack(layout, self._memory, start + size * n) for n in range(count)]

    def tables(self, field: int) -> list[_Table]:
        """The items of a vector of tables."""
        start, count = self._vector(field)
        return [_Table(self._memory, _pointed(self._memory, start + 4 * n)) for n in range(count)]

    def _vector(self, field: int) -> tuple[int, int]:
        """Where the items of a vector begin, and how many they are."""
        at = self._place(field)
        if at is None:
            return 0, 0
        at = _pointed(self._memory, at)
        return at + 4, _unpack("<I", self._memory, at)[0]

    def _place(self, field: int) -> int | None:
        """Where a field lies; None where it was left out."""
        entry = 4 + 2 * field
        if entry >= _unpack("<H", self._memory, self._fields)[0]:
            return None
        [offset] = _unpack("<H", self._memory, self._fields + entry)
        return self._at + offset if offset else None


def _pointed(memory: mmap.mmap, at: int) -> int:
    """Where the offset at a place points."""
    return at + int(_unpack("<I", memory, at)[0])


def _unpack(layout: str, memory: mmap.mmap, at: int) -> tuple[Any, ...]:
    if not 0 <= at <= len(memory) - struct.calcsize(layout):
        raise ValueError("it points outside of itself")
    return struct.unpack_from(layout, memory, at)
