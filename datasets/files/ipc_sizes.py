"""Read the decompressed sizes of record batches in Arrow files, without decompressing them.

Format: Arrow's ``Message.fbs`` and ``File.fbs``, as flatbuffers. A table begins with the distance
back to its vtable, which has 2 bytes per field.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Any

import numpy as np

from penstock.core.sample import inflated_too_large

_END = struct.Struct("<i6s")  # length of the footer, magic
_BLOCK = struct.Struct("<qi4xq")  # offset, bytes of metadata, bytes of the body
_MARK = b"\xff\xff\xff\xff"  # before the metadata's length, since Arrow 0.15
_HEADER_TYPE, _HEADER = 1, 2  # fields of a message
_DICTIONARY_BATCH = 2  # type of a header
_DATA = 1  # field of a dictionary batch
_BUFFERS, _COMPRESSION = 2, 3  # fields of a record batch
_DICTIONARIES, _BATCHES = 2, 3  # fields of a footer


def file_fault(memory: Any, part: int, max_bytes: int) -> str | None:
    """Return why record batch `part` of an IPC file, or a dictionary, is too large, or None."""
    data = memoryview(memory).cast("B")
    try:
        start = len(data) - _END.size
        footer = _follow(data, start - _END.unpack_from(data, start)[0])
        blocks = [*_blocks(data, footer, _DICTIONARIES), *_blocks(data, footer, _BATCHES, part)]
    except (struct.error, IndexError):
        return None  # the library says better what is wrong
    for offset, metadata_bytes, body_bytes in blocks:
        body = offset + metadata_bytes
        prefix_bytes = 8 if data[offset : offset + 4] == _MARK else 4
        message = data[offset + prefix_bytes : body]
        if fault := message_fault(message, data[body : body + body_bytes], max_bytes):
            return fault
    return None


def message_fault(metadata: Any, body: Any, max_bytes: int) -> str | None:
    """Return why one message is too large, or None; metadata and body are buffers."""
    data = memoryview(metadata).cast("B")
    try:
        message = _follow(data, 0)
        header_type = _field(data, message, _HEADER_TYPE)
        header = _field(data, message, _HEADER)
        if header_type is None or header is None:
            return None
        batch = _follow(data, header)
        if data[header_type] == _DICTIONARY_BATCH:
            inside = _field(data, batch, _DATA)
            batch = batch if inside is None else _follow(data, inside)
        buffers = _field(data, batch, _BUFFERS)
        if buffers is None or _field(data, batch, _COMPRESSION) is None:
            return None
        start = _follow(data, buffers)
        count = struct.unpack_from("<I", data, start)[0]
        places = np.frombuffer(data, "<i8", 2 * count, start + 4).reshape(-1, 2)
        stored = memoryview(body).cast("B")
        sizes = [
            struct.unpack_from("<q", stored, place)[0]
            for place, length in places.tolist()
            if length
        ]
    except (struct.error, IndexError, ValueError):
        return None  # the library says better what is wrong
    return inflated_too_large(sum(sizes), len(stored), max_bytes)


def _follow(data: memoryview, place: int) -> int:
    """Return the position that the offset at `place` points to."""
    found: int = place + struct.unpack_from("<I", data, place)[0]
    return found


def _field(data: memoryview, table: int, number: int) -> int | None:
    """Return the position of a table's field, or None if it is absent."""
    places = table - struct.unpack_from("<i", data, table)[0]
    at = 4 + 2 * number
    if at >= struct.unpack_from("<H", data, places)[0]:
        return None
    distance = struct.unpack_from("<H", data, places + at)[0]
    return table + distance if distance else None


def _blocks(
    data: memoryview, footer: int, field: int, part: int | None = None
) -> Iterator[tuple[int, int, int]]:
    """Read the positions of the messages in one footer field: all of them, or message `part`."""
    place = _field(data, footer, field)
    if place is None:
        return
    start = _follow(data, place)
    numbers = range(struct.unpack_from("<I", data, start)[0]) if part is None else (part,)
    for number in numbers:
        yield _BLOCK.unpack_from(data, start + 4 + number * _BLOCK.size)
