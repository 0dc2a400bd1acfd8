"""The checksum of a record: the same in whatever form it is stored."""

from __future__ import annotations

import json
import zlib
from typing import Any

import numpy as np

_BYTES = (bytes, bytearray, memoryview)


def record_checksum(fields: dict[str, Any], *, key: str) -> tuple[int, int]:
    """CRC-32 of a record's fields, and how many bytes they are without its label.

    Fields count by name and not by their order. Byte strings count by their bytes, arrays by
    type, shape and values, whatever their byte order, and everything else as JSON.

    Args:
        fields: The fields.
        key: The record's key, for messages.

    Raises:
        ValueError: A field is of a type that no form can hold.
    """
    crc, size = 0, 0
    for name in sorted(fields):
        value = fields[name]
        content: Any
        if isinstance(value, _BYTES):
            content, kind = value, "bytes"
        elif isinstance(value, np.ndarray) and value.dtype.kind in "biufc":
            native = value.astype(value.dtype.newbyteorder("<"), copy=False)
            content = np.ascontiguousarray(native).reshape(-1).view(np.uint8)
            kind = f"{native.dtype.str}{value.shape}"
        else:
            content, kind = _as_json(value, name, key), "json"
        if name != "label":  # a class id, which is no part of the data
            size += len(content)
        crc = zlib.crc32(f"{name}\0{kind}\0{len(content)}\0".encode(), crc)
        crc = zlib.crc32(content, crc)
    return crc, size


def _as_json(value: Any, name: str, key: str) -> bytes:
    if type(value) is int:
        return b"%d" % value
    value = value.item() if isinstance(value, np.generic) else value
    try:
        return json.dumps(value, sort_keys=True).encode()
    except (TypeError, ValueError) as error:
        raise ValueError(
            f"pack: {key!r}: field {name!r} is a {type(value).__name__}, expected bytes, "
            f"numbers, text, lists or arrays of numbers; convert or drop it"
        ) from error
