"""The fields of a record as one value: the image's bytes as they are, then the rest.

A value without other fields *is* the image, so that any other program can read it: a file, or the
pixels of a decoded one row by row, whose shape is kept elsewhere. What follows
the image is a JSON header, its length in the last four bytes, and before it the raw bytes of
arrays and byte strings.
"""

from __future__ import annotations

import json
import struct
from typing import Any

import numpy as np

_LENGTH = struct.Struct("<I")


def pack_fields(fields: dict[str, Any], *, key: str) -> tuple[bytes, int]:
    """Pack a record's fields, all but the label.

    Returns:
        The value, and how many bytes at its start are the image.

    Raises:
        ValueError: A field is of a type that cannot be packed.
    """
    image: Any = fields.get("image", b"")
    if isinstance(image, np.ndarray):
        if image.dtype != np.uint8 or image.ndim != 3:
            raise ValueError(
                f"pack: {key!r}: its image is {image.dtype} {list(image.shape)}, expected a file "
                f"or uint8 [H, W, C]; convert it, or rename it with dataset.keys"
            )
        image = image.tobytes()
    rest = {k: v for k, v in fields.items() if k not in ("image", "label")}
    if not rest and "image" in fields:
        return image, len(image)
    parts: list[bytes] = []
    header: dict[str, Any] = {"image": "image" in fields, "fields": {}}
    for name, value in rest.items():
        if isinstance(value, bytes | bytearray | memoryview):
            parts.append(bytes(value))
            header["fields"][name] = ["bytes", len(parts[-1])]
        elif isinstance(value, np.ndarray) and value.dtype.kind in "biufc":
            parts.append(value.tobytes())
            header["fields"][name] = ["array", len(parts[-1]), value.dtype.str, value.shape]
        else:
            value = value.item() if isinstance(value, np.generic) else value
            try:
                json.dumps(value)
            except (TypeError, ValueError) as error:
                raise ValueError(
                    f"pack: {key!r}: field {name!r} is a {type(value).__name__}, expected bytes, "
                    f"numbers, text, lists or arrays of numbers; convert or drop it"
                ) from error
            header["fields"][name] = ["json", value]
    text = json.dumps(header).encode()
    return b"".join([image, *parts, text, _LENGTH.pack(len(text))]), len(image)


def unpack_fields(
    value: Any, image_bytes: int | None, shape: tuple[int, ...] | None = None
) -> dict[str, Any]:
    """The fields of a packed value.

    Args:
        value: What `pack_fields` gave, whole and checked, as bytes or uint8 [N].
        image_bytes: How many bytes at its start are the image; None: all.
        shape: Height, width and channels, if the image is decoded. It then is a view of `value`.
    """
    image = value if image_bytes is None else value[:image_bytes]
    if shape is not None:
        image = np.frombuffer(image, np.uint8).reshape(shape)
    if image_bytes is None or image_bytes == len(value):
        return {"image": image}
    value = bytes(value)
    header_at = len(value) - 4 - _LENGTH.unpack_from(value, len(value) - 4)[0]
    header = json.loads(value[header_at:-4])
    fields: dict[str, Any] = {"image": image} if header["image"] else {}
    at = image_bytes
    for name, (kind, *about) in header["fields"].items():
        if kind == "json":
            fields[name] = about[0]
            continue
        part = value[at : at + about[0]]
        at += about[0]
        # A copy, because an array over bytes cannot be written to.
        fields[name] = (
            part if kind == "bytes" else np.frombuffer(part, about[1]).reshape(about[2]).copy()
        )
    return fields
