"""Encodes a record's fields as bytes, for caches and packed files; decoding never executes code.

The layout: the buffers of byte strings and arrays, each padded to 16 bytes, a JSON header, and the
header's length in four bytes.
"""

from __future__ import annotations

import json
import struct
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from penstock.core.json_text import parse_json
from penstock.core.sample import RecordError
from penstock.core.user_errors import is_trouble

Buffer = bytes | memoryview
_LENGTH = struct.Struct("<I")
_ALIGNMENT = 16
_PLAIN = frozenset((type(None), bool, int, float, str))
_BYTES = (bytes, bytearray, memoryview)
_NUMBERS = "biufc"
_KINDS = _NUMBERS + "SUMm"


class UncacheableError(Exception):
    """A record has a field that cannot be encoded; the message names it."""


@dataclass(frozen=True, slots=True)
class Entry:
    """A packed record: consecutive `parts`, `size_bytes` in total."""

    parts: list[Buffer]
    size_bytes: int


def pack_record(key: str, fields: Mapping[str, Any]) -> Entry:
    """Encode a record with the exact types of its values; views are not copied.

    Raise UncacheableError for a field other than a number, text, bytes, an array of numbers, or a
    list, tuple or dict of these.
    """
    buffers: list[Buffer] = []
    specs = {name: _spec(value, buffers, name) for name, value in fields.items()}
    parts: list[Buffer] = []
    for buffer in buffers:
        parts += [buffer, bytes(-memoryview(buffer).nbytes % _ALIGNMENT)]
    text = json.dumps({"key": key, "fields": specs}).encode()
    parts += [text, _LENGTH.pack(len(text))]
    return Entry(parts, sum(memoryview(part).nbytes for part in parts))


def unpack_record(payload: Any) -> tuple[str, dict[str, Any]]:
    """Decode the key and fields of a `pack_record` payload, aligned to 16 bytes.

    Writable arrays are copied; the others are read-only views of the payload.
    """
    view, at = memoryview(payload).toreadonly(), 0
    end = len(view) - _LENGTH.size
    (length,) = _LENGTH.unpack_from(view, end)
    header = parse_json(bytes(view[end - length : end]))

    def take(size_bytes: int) -> memoryview:
        nonlocal at
        part = view[at : at + size_bytes]
        at += size_bytes + -size_bytes % _ALIGNMENT
        return part

    return header["key"], {name: _value(spec, take) for name, spec in header["fields"].items()}


def pack_fields(fields: Mapping[str, Any], *, key: str) -> bytes:
    """Encode fields for a file; raise ValueError for a type that cannot be packed."""
    return b"".join(pack_record("", {n: _storable(v, n, key) for n, v in fields.items()}).parts)


def unpack_fields(value: Any) -> dict[str, Any]:
    """Decode a `pack_fields` value, arrays as copies; RecordError if it is damaged."""
    try:
        return unpack_record(value)[1]
    except Exception as error:  # damage raises many types
        if is_trouble(error):
            raise
        said = " ".join(str(error).split())
        raise RecordError(f"its fields cannot be read ({said})") from error


def record_checksum(fields: dict[str, Any], *, key: str) -> tuple[int, int]:
    """Return the CRC-32 of a record's fields, and their size in bytes without the label.

    The result is equal for every storage format. It depends on field names but not their order,
    on the type, shape and values of arrays but not their byte order. Fields other than byte
    strings and arrays count as JSON. Raise ValueError for a type that no format can hold.
    """
    crc, size = 0, 0
    for name in sorted(fields):
        value = fields[name]
        content: Any
        if isinstance(value, _BYTES):
            content, kind = value, "bytes"
        elif isinstance(value, np.ndarray) and value.dtype.kind in _NUMBERS:
            native = value.astype(value.dtype.newbyteorder("<"), copy=False)
            content = np.ascontiguousarray(native).reshape(-1).view(np.uint8)
            kind = f"{native.dtype.str}{value.shape}"
        else:
            content, kind = _as_json(value, name, key), "json"
        if name != "label":  # a class id rather than data
            size += len(content)
        crc = zlib.crc32(f"{name}\0{kind}\0{len(content)}\0".encode(), crc)
        crc = zlib.crc32(content, crc)
    return crc, size


def _as_json(value: Any, name: str, key: str) -> bytes:
    value = value.item() if isinstance(value, np.generic) else value
    try:
        return json.dumps(value, sort_keys=True).encode()
    except (TypeError, ValueError) as error:
        raise ValueError(
            f"pack: {key!r}: field {name!r} is a {type(value).__name__}, expected bytes, "
            f"numbers, text, lists or arrays of numbers; convert or drop it"
        ) from error


def _storable(value: Any, name: str, key: str) -> Any:
    """Return a value in its form in files: bytes, an array of numbers, or plain JSON."""
    if isinstance(value, _BYTES):
        return bytes(value)
    if isinstance(value, np.ndarray) and value.dtype.kind in _NUMBERS:
        return np.array(value)  # writeable and plain, whatever the source returned
    return value if _is_json(value) else json.loads(_as_json(value, name, key))


def _is_json(value: Any) -> bool:
    """Whether a value survives JSON unchanged."""
    kind = type(value)
    if kind is list:
        return all(map(_is_json, value))
    if kind is dict:
        return all(type(key) is str and _is_json(item) for key, item in value.items())
    return kind in _PLAIN


def _spec(value: Any, buffers: list[Buffer], name: str) -> list[Any]:
    """Return the header's entry for a value, and append its bytes to `buffers`."""
    kind = type(value)
    if _is_json(value):
        return ["json", value]
    if kind in _BYTES:
        buffers.append(memoryview(value).cast("B"))
        return ["bytearray" if kind is bytearray else "bytes", len(buffers[-1])]
    if kind is np.ndarray or isinstance(value, np.generic):
        array = np.asarray(value)
        if array.dtype.kind not in _KINDS:
            raise UncacheableError(f"its field {name!r} is an array of {array.dtype}")
        array = np.ascontiguousarray(array) if not array.flags.c_contiguous else array
        buffers.append(array.reshape(-1).view(np.uint8).data)
        if kind is not np.ndarray:
            return ["number", array.nbytes, array.dtype.str]
        spec = ["array", array.nbytes, array.dtype.str, list(array.shape)]
        return [*spec, False] if not value.flags.writeable else spec
    if kind is list or kind is tuple:
        return [kind.__name__, [_spec(item, buffers, name) for item in value]]
    if kind is dict and all(type(key) is str for key in value):
        return ["dict", {k: _spec(item, buffers, name) for k, item in value.items()}]
    raise UncacheableError(f"its field {name!r} is or holds a {kind.__name__}")


def _value(spec: list[Any], take: Callable[[int], memoryview]) -> Any:
    kind, about, *rest = spec
    if kind == "json":
        return about
    if kind == "bytes":
        return bytes(take(about))
    if kind == "array":
        dtype, shape, *flags = rest
        array = _array(dtype, shape, take(about))
        return array if flags else array.copy()
    if kind == "number":
        return _array(rest[0], [], take(about))[()]
    if kind == "dict":
        return {name: _value(item, take) for name, item in about.items()}
    if kind == "bytearray":
        return bytearray(take(about))
    items = [_value(item, take) for item in about]
    return items if kind == "list" else tuple(items)


def _array(dtype: str, shape: list[int], content: memoryview) -> NDArray[Any]:
    kind = np.dtype(dtype)
    if kind.kind not in _KINDS or min(shape, default=0) < 0:  # objects would be pointers
        raise ValueError(f"an array of {dtype} {shape} is none that was packed")
    return np.ndarray(shape, kind, buffer=content)
