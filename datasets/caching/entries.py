"""A record as bytes and back: what caches hold.

The layout: the length of a header (uint32), the header (JSON: key, fields, lengths), and then the
buffers of byte strings and arrays, each at a multiple of 16 bytes. Nothing of it can execute code.
"""

from __future__ import annotations

import json
import os
import struct
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from datasets.sample import Record

Buffer = bytes | memoryview
_LENGTH = struct.Struct("<I")
_ALIGNMENT = 16
_MOST_PARTS = 64
_PLAIN = frozenset((type(None), bool, int, float, str))
_KINDS = "biufcSUMm"


class UncacheableError(Exception):
    """A record holds what no cache can; the message says what."""


@dataclass(frozen=True, slots=True)
class Entry:
    """A packed record: `parts` one behind the other, `size_bytes` in all."""

    parts: list[Buffer]
    size_bytes: int


def pack(record: Record) -> Entry:
    """Pack key and fields of a record; array views stay views until they are written.

    Raises:
        UncacheableError: A field is neither a number, text, bytes, an array of numbers, nor a
            list, tuple or dict of these.
    """
    buffers: list[memoryview] = []
    fields = {name: _encoded(value, buffers, name) for name, value in record.fields.items()}
    lengths = [buffer.nbytes for buffer in buffers]
    header = json.dumps([record.key, fields, lengths]).encode()
    parts: list[Buffer] = [_LENGTH.pack(len(header)), header]
    size_bytes = _LENGTH.size + len(header)
    for buffer in buffers:
        if gap := -size_bytes % _ALIGNMENT:
            parts.append(bytes(gap))
        parts.append(buffer)
        size_bytes += gap + buffer.nbytes
    return Entry(parts, size_bytes)


def unpack(payload: NDArray[np.uint8], index: int, *, is_private: bool) -> Record:
    """The record again, as it was packed.

    Args:
        payload: uint8 [size_bytes], what `pack` gave; begins at a multiple of 16 bytes.
        index: What the record was asked for by.
        is_private: The payload is the caller's own and may be given away. Otherwise arrays that
            could be written to are copied, and the others are read-only views of the payload.
    """
    view = payload.data
    if not is_private:
        view = view.toreadonly()
    (length,) = _LENGTH.unpack_from(view)
    at = _LENGTH.size + length
    key, fields, lengths = json.loads(view[_LENGTH.size : at].tobytes())
    buffers = []
    for length in lengths:
        at += -at % _ALIGNMENT
        buffers.append(view[at : at + length])
        at += length
    return Record(
        index,
        key,
        {
            name: value if type(value) in _PLAIN else _decoded(value, buffers, is_private)
            for name, value in fields.items()
        },
    )


def write_parts(descriptor: int, parts: list[Buffer], size_bytes: int, at: int) -> None:
    """Write parts one behind the other to a place in a file.

    Memory behind a file takes this better than stores to where it is mapped, each page of which
    would be asked for and zeroed first.

    Raises:
        OSError: There is no room; some of it may be written.
    """
    done = os.pwritev(descriptor, parts, at) if len(parts) <= _MOST_PARTS else 0
    if done < size_bytes:
        rest = memoryview(b"".join(parts))[done:]
        while rest:
            written = os.pwrite(descriptor, rest, at + size_bytes - len(rest))
            rest = rest[written:]


def _encoded(value: Any, buffers: list[memoryview], name: str) -> Any:
    kind = type(value)
    if kind in _PLAIN:
        return value
    if kind in (bytes, bytearray, memoryview):
        buffers.append(memoryview(value).cast("B"))
        return {"y" if kind is bytearray else "b": len(buffers) - 1}
    if kind is np.ndarray or isinstance(value, np.generic):
        array = np.asarray(value)
        if array.dtype.kind not in _KINDS:
            raise UncacheableError(f"its field {name!r} is an array of {array.dtype}")
        if not array.flags.c_contiguous:
            array = np.ascontiguousarray(array)
        buffers.append(array.reshape(-1).view(np.uint8).data)
        place = [len(buffers) - 1, array.dtype.str]
        if kind is not np.ndarray:
            return {"n": place}
        return {"a": [*place, list(array.shape), bool(value.flags.writeable)]}
    if kind is list:
        return [_encoded(item, buffers, name) for item in value]
    if kind is tuple:
        return {"t": [_encoded(item, buffers, name) for item in value]}
    if kind is dict and all(type(key) is str for key in value):
        return {"d": {key: _encoded(item, buffers, name) for key, item in value.items()}}
    raise UncacheableError(f"its field {name!r} is or holds a {kind.__name__}")


def _decoded(value: Any, buffers: list[memoryview], is_private: bool) -> Any:
    if type(value) is list:
        return [_decoded(item, buffers, is_private) for item in value]
    if type(value) is not dict:
        return value
    ((mark, about),) = value.items()
    if mark == "b":
        return bytes(buffers[about])
    if mark == "a":
        number, dtype, shape, is_writeable = about
        array: NDArray[Any] = np.ndarray(shape, dtype, buffer=buffers[number])
        if is_writeable and not is_private:
            return array.copy()
        array.flags.writeable = is_writeable
        return array
    if mark == "n":
        return np.ndarray((), about[1], buffer=buffers[about[0]])[()]
    if mark == "t":
        return tuple(_decoded(item, buffers, is_private) for item in about)
    if mark == "d":
        return {key: _decoded(item, buffers, is_private) for key, item in about.items()}
    assert mark == "y"
    return bytearray(buffers[about])
