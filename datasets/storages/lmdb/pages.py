"""Find every value in an LMDB file by its pages, without the library.

The library trusts the file: a flipped bit in a page, or a truncated file, ends the interpreter
with a segmentation fault or a bus error. This module checks every number before it follows it.
The format is LMDB 0.9 (struct MDB_page, MDB_meta and MDB_node in its mdb.c) on little-endian
64-bit machines.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import NamedTuple

from penstock.core.sample import RecordError
from penstock.datasets.files.access import RangeFile

_MAGIC, _VERSION = 0xBEEFC0DE, 1
# Page flags; magic, version; page size; main database's root; last page, transaction.
_META = struct.Struct("<10xH4xII16xI84xQQQ")
_PAGE = struct.Struct("<Q2xHHH")  # page number, flags, lower, upper
_NODE = struct.Struct("<HHHH")  # low, high, flags, key size
_BRANCH, _LEAF, _IS_META = 0x01, 0x02, 0x08
_BIG_DATA, _SUB_DATABASE, _DUPLICATES = 0x01, 0x02, 0x04
_NO_ROOT = (1 << 64) - 1


class Entry(NamedTuple):
    """A key and the place of its value in the file."""

    key: bytes
    offset: int
    size_bytes: int


class Meta(NamedTuple):
    """The state of a file after its last transaction."""

    page_bytes: int
    root: int
    last_page: int
    transaction: int


def read_meta(file: RangeFile) -> Meta:
    """Read the later of the two meta pages between which LMDB alternates."""
    first = _meta(file, 0)
    size = first.page_bytes
    if not 512 <= size <= 65536 or size & (size - 1):
        raise _damage(0)
    return max(first, _meta(file, size), key=lambda meta: meta.transaction)._replace(
        page_bytes=size
    )


def _meta(file: RangeFile, offset: int) -> Meta:
    content = file.read_upto(offset, _META.size)
    flags, *mark = (0,) if len(content) < _META.size else _META.unpack(content)
    if not flags & _IS_META or mark[:2] != [_MAGIC, _VERSION]:
        raise RecordError(
            "no LMDB file of engine 0.9, or cut short or damaged; copy it again, or check "
            "dataset.storage.path"
        )
    return Meta(*mark[2:])


def scan_pages(file: RangeFile, file_bytes: int) -> Iterator[Entry]:
    """Yield all entries in the order of their keys, without named databases.

    RecordError for a damaged, truncated, or unsupported file.
    """
    page_bytes, root, last_page, _ = read_meta(file)
    if (expected := (last_page + 1) * page_bytes) > file_bytes:
        raise RecordError(
            f"cut short: it has {file_bytes:,} bytes and should have {expected:,}; copy it again"
        )
    pending, seen = [] if root == _NO_ROOT else [root], 0
    while pending:
        number = pending.pop()
        seen += 1
        if max(seen, number + 1) * page_bytes > file_bytes:  # seen: pages that lead in a circle
            raise _damage(number)
        content = file.read(number * page_bytes, page_bytes)
        found, flags, lower, _ = _PAGE.unpack_from(content)
        kind = flags & 0x6F
        if found != number or kind not in (_BRANCH, _LEAF) or not 16 <= lower <= page_bytes:
            raise _damage(number)
        children = []
        for place in struct.unpack_from(f"<{(lower - 16) // 2}H", content, 16):
            if not 16 <= place <= page_bytes - _NODE.size:
                raise _damage(number)
            low, high, top, key_bytes = _NODE.unpack_from(content, place)
            start, size_bytes = place + _NODE.size + key_bytes, low | high << 16
            if kind == _BRANCH:
                children.append(size_bytes | top << 32)
            elif top & _DUPLICATES:
                raise RecordError("a key has several values (DUPSORT); write one for each key")
            elif not top & _SUB_DATABASE:
                offset = number * page_bytes + start
                if start + (8 if top & _BIG_DATA else size_bytes) > page_bytes:
                    raise _damage(number)
                if top & _BIG_DATA:
                    offset = struct.unpack_from("<Q", content, start)[0] * page_bytes + 16
                if offset + size_bytes > file_bytes:
                    raise _damage(number)
                yield Entry(content[place + _NODE.size : start], offset, size_bytes)
        pending += reversed(children)


def _damage(page: int) -> RecordError:
    return RecordError(f"page {page} is damaged; copy it again")
