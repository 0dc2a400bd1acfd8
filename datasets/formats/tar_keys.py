"""Keys of any characters as names of tar members, from which they come back exactly.

What reads shards takes the members' path, up to the first dot of its last part, for the key of a
sample. Of a key that has more, the rest, or that the path is escaped, stands in the name of the
members' owner, which is of no use otherwise: ``key:.jpg`` or ``key:%``.
"""

from __future__ import annotations

import re

from datasets.formats.tar_samples import split_name

_MARK = b"key:"
_ESCAPED = b"key:%"
_ODD = re.compile(rb"[^A-Za-z0-9_ /\x80-\xff-]")
_ANY = re.compile(rb"(?s).")
_HEX = re.compile(rb"%([0-9a-f]{2})")
_EXTENSION = re.compile(rb"(\.[A-Za-z0-9]{1,16})?")


def pack_key(key: bytes, *, before: bytes) -> tuple[bytes, bytes]:
    """What the names of a sample's members begin with, and the name of their owner.

    Args:
        key: The key.
        before: What the names of the sample before begin with, which must be something else.
    """
    at = key.rfind(b".", key.rfind(b"/") + 1)
    stem, rest = (key[:at], key[at:]) if at >= 0 else (key, b"")
    if b"%" not in stem and _EXTENSION.fullmatch(rest) and _is_path(stem) and stem != before:
        return stem, _MARK + rest if rest else b""
    escaped = _ODD.sub(_hex, key)
    if not _is_path(escaped) or escaped == before:
        escaped = _ANY.sub(_hex, key) or b"%"
    return escaped, _ESCAPED


def unpack_key(stem: bytes, owner: bytes) -> bytes:
    """The key of a sample.

    Args:
        stem: What the names of its members begin with.
        owner: The name of their owner.
    """
    if not owner.startswith(_MARK):
        return stem
    if owner != _ESCAPED:
        return stem + owner[len(_MARK) :]
    return b"" if stem == b"%" else _HEX.sub(lambda found: bytes([int(found[1], 16)]), stem)


def _hex(found: re.Match[bytes]) -> bytes:
    return b"%%%02x" % found[0][0]


def _is_path(stem: bytes) -> bool:
    """Whether names that begin so are read as they are meant, by everyone."""
    if stem.startswith(b"/") or b"\0" in stem or b".." in stem.split(b"/"):
        return False
    return split_name(stem + b".x") == (stem, b"x")
