"""Flatbuffers, which the metadata of Arrow files is: read in place, and written.

Format: flatbuffers.dev, "Internals". Fields go by their numbers; a schema says what they are.
"""

from __future__ import annotations

import mmap
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any


class FlatTable:
    """A table of a flatbuffer: its fields by number, wherever they lie."""

    def __init__(self, memory: mmap.mmap, at: int) -> None:
        self._memory = memory
        self._at = at
        self._fields = at - unpack("<i", memory, at)[0]

    @classmethod
    def root(cls, memory: mmap.mmap, at: int) -> FlatTable:
        """The table that a flatbuffer begins with."""
        return cls(memory, _pointed(memory, at))

    def number(self, field: int, layout: str) -> int:
        """A number; 0 where it was left out."""
        at = self._place(field)
        return 0 if at is None else int(unpack(layout, self._memory, at)[0])

    def table(self, field: int) -> FlatTable:
        """A table, which must be there."""
        at = self._place(field)
        if at is None:
            raise ValueError("a part is missing")
        return FlatTable(self._memory, _pointed(self._memory, at))

    def text(self, field: int) -> bytes:
        """A string's bytes; none where it was left out."""
        start, count = self._vector(field)
        return self._memory[start : start + count]

    def structs(self, field: int, layout: str) -> list[tuple[Any, ...]]:
        """The items of a vector of structs."""
        start, count = self._vector(field)
        size = struct.calcsize(layout)
        return [unpack(layout, self._memory, start + size * n) for n in range(count)]

    def tables(self, field: int) -> list[FlatTable]:
        """The items of a vector of tables."""
        start, count = self._vector(field)
        places = (_pointed(self._memory, start + 4 * n) for n in range(count))
        return [FlatTable(self._memory, at) for at in places]

    def _vector(self, field: int) -> tuple[int, int]:
        """Where the items of a vector begin, and how many they are."""
        at = self._place(field)
        if at is None:
            return 0, 0
        at = _pointed(self._memory, at)
        return at + 4, unpack("<I", self._memory, at)[0]

    def _place(self, field: int) -> int | None:
        """Where a field lies; None where it was left out."""
        entry = 4 + 2 * field
        if entry >= unpack("<H", self._memory, self._fields)[0]:
            return None
        [offset] = unpack("<H", self._memory, self._fields + entry)
        return self._at + offset if offset else None


def unpack(layout: str, memory: mmap.mmap, at: int) -> tuple[Any, ...]:
    """Numbers at a place.

    Raises:
        ValueError: It is outside of the memory.
    """
    if not 0 <= at <= len(memory) - struct.calcsize(layout):
        raise ValueError("it points outside of itself")
    return struct.unpack_from(layout, memory, at)


def _pointed(memory: mmap.mmap, at: int) -> int:
    """Where the offset at a place points."""
    return at + int(unpack("<I", memory, at)[0])


@dataclass(frozen=True, slots=True)
class Number:
    """A number to write, of at most eight bytes."""

    layout: str
    value: int


@dataclass(frozen=True, slots=True)
class Structs:
    """A vector of structs to write."""

    layout: str
    items: Sequence[tuple[int, ...]]


@dataclass(frozen=True, slots=True)
class Table:
    """A table to write: its fields by number, None for one that is left out.

    Bytes are a string, a list is a vector of tables.
    """

    fields: Sequence[Number | Vector | Table | None]


Vector = Structs | list[Table] | bytes


def flatbuffer(root: Table) -> bytes:
    """A flatbuffer that begins with a table; its length is a multiple of 8."""
    content = bytearray(4)
    _append(content, 0, root)
    return bytes(content) + bytes(-len(content) % 8)


def _append(content: bytearray, pointer: int, value: Table | Vector) -> None:
    """Append a value and what it points to; the offset at `pointer` leads there.

    Four bytes come first, a count of items or the way to a table's list of fields. They lie so
    that what follows is aligned, whatever numbers it is.
    """
    head, body, pointers = _encoded(value)
    content += bytes((4 - len(content)) % 8)
    struct.pack_into("<I", content, pointer, len(content) - pointer)
    content += struct.pack("<i", head)
    start = len(content)
    content += body
    for offset, pointed in pointers:
        _append(content, start + offset, pointed)


def _encoded(value: Table | Vector) -> tuple[int, bytes, list[tuple[int, Table | Vector]]]:
    """A value's first number, its bytes, and where in these stands an offset of what."""
    if isinstance(value, bytes):
        return len(value), value + b"\0", []
    if isinstance(value, Structs):
        return len(value.items), b"".join(struct.pack(value.layout, *i) for i in value.items), []
    if isinstance(value, list):
        return len(value), bytes(4 * len(value)), [(4 * n, item) for n, item in enumerate(value)]
    # Eight bytes for every field, and then where each lies.
    body, pointers = bytearray(8 * len(value.fields)), list[tuple[int, Table | Vector]]()
    places = [0 if field is None else 4 + 8 * n for n, field in enumerate(value.fields)]
    for n, field in enumerate(value.fields):
        if isinstance(field, Number):
            struct.pack_into(field.layout, body, 8 * n, field.value)
        elif field is not None:
            pointers.append((8 * n, field))
    size_bytes = 4 + len(body)
    body += struct.pack(f"<{2 + len(places)}H", 4 + 2 * len(places), size_bytes, *places)
    return -size_bytes, bytes(body), pointers
