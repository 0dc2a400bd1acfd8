"""Writing tar shards: headers, and the members that hold the fields of a record."""

from __future__ import annotations

import json
import re
import struct
from collections.abc import Mapping
from typing import Any

import numpy as np

from datasets.formats.npy_bytes import write_npy
from datasets.formats.tar_headers import CRC32_MARK, stored_bytes
from datasets.formats.tar_samples import FIELD_NAMES, RESERVED

# All fields up to the group, of which mode, ids and time are the same for every member.
_HEADER = struct.Struct("<100s8s8s8s12s12s8sc100s8s32s32s183x")
_ODD_NAME = re.compile(r"[^a-z0-9_-]")


def write_header(name: bytes, size_bytes: int, *, owner: bytes = b"", crc32: int) -> bytes:
    """A file's header, the same for the same arguments; a long name has one of its own before it.

    Args:
        name: The path, any length.
        size_bytes: Length of the content that is to follow, with zeros up to a whole block.
        owner: The name of the owner, at most 31 bytes.
        crc32: Checksum of the content. Tar has none, so it is the name of the group:
            ``crc32:89abcdef``.
    """
    group = b"%s%08x" % (CRC32_MARK, crc32)
    block = _block(name[:100], size_bytes, b"0", owner, group)
    if len(name) <= 100:
        return block
    path = name + b"\0"
    padding = bytes(stored_bytes(len(path)) - len(path))
    return _block(b"././@LongLink", len(path), b"L", b"", b"") + path + padding + block


def _block(name: bytes, size_bytes: int, kind: bytes, owner: bytes, group: bytes) -> bytes:
    assert len(owner) < 32
    size = b"%011o\0" % size_bytes
    if size_bytes >= 8**11:
        size = b"\x80" + size_bytes.to_bytes(11, "big")
    zero, time = b"0000000\0", b"00000000000\0"
    fields: list[Any] = [
        name,
        b"0000644\0",
        zero,
        zero,
        size,
        time,
        b" " * 8,
        kind,
        b"",
        b"ustar  \0",
    ]
    fields[6] = b"%06o\0 " % sum(_HEADER.pack(*fields, owner, group))
    return _HEADER.pack(*fields, owner, group)


def pack_members(fields: Mapping[str, Any], *, image: str, key: str) -> dict[str, bytes]:
    """The members of a sample, from which `SampleFields.read` gives its fields.

    Args:
        fields: The fields of a record.
        image: The extension of an image file.
        key: The record's key, for messages.

    Returns:
        Content by extension: byte strings and arrays each by itself, everything else as JSON.

    Raises:
        ValueError: A field cannot be held.
    """
    members: dict[str, bytes] = {}
    items: dict[str, Any] = {}
    for name, value in fields.items():
        if name in RESERVED or not name:
            raise ValueError(
                f"pack: {key!r}: a field is called {name!r}, which shards cannot hold; rename or "
                f"drop it with dataset.keys"
            )
        if name == "label":
            members["cls"] = b"%d" % value
        elif isinstance(value, np.ndarray):
            members[_extension(name, "npy")] = write_npy(value)
        elif isinstance(value, bytes | bytearray | memoryview):
            extension = image if name == "image" else _extension(name, "bin")
            members[extension] = bytes(value)
        else:
            items[name] = value.item() if isinstance(value, np.generic) else value
    if items or not members:
        try:
            members["json"] = json.dumps(dict(sorted(items.items()))).encode()
        except (TypeError, ValueError) as error:
            raise ValueError(
                f"pack: {key!r}: one of the fields {', '.join(items)} is no JSON ({error}); "
                f"convert or drop it"
            ) from error
    # What is small stands before what is large; and the order of the fields does not matter.
    return dict(sorted(members.items(), key=lambda m: (m[0] not in ("cls", "json"), m[0])))


def _extension(name: str, kind: str) -> str:
    """An extension that gives the field `name`, whatever characters it has."""
    plain = name not in FIELD_NAMES and not _ODD_NAME.search(name)
    return f"{name if plain else ''.join(f'%{byte:02x}' for byte in name.encode())}.{kind}"
