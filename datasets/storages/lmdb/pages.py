"""Find every value in an LMDB file by its pages, without the library.

The library trusts the file: a flipped bit in a page, or a truncated file, ends the interpreter
with a segmentation fault or a bus error. This module checks every number before it follows it.
Once the places of the values are known, any thread of any process reads one by `pread`. The
format is LMDB 0.9 (struct MDB_page, MDB_meta and MDB_node in its mdb.c) on little-endian 64-bit
machines. Files of engine 1.0, with longer page headers, are refused.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator
from dataclasses import dataclass

_MAGIC = 0xBEEFC0DE
_VERSION = 1
_HEADER = struct.Struct("<QHHHH")  # page number, padding, flags, lower, upper
_META = struct.Struct("<IIQQ")  # magic, version, address, map size
_DATABASE = struct.Struct("<IHHQQQQQ")  # padding, flags, depth, pages of 3 kinds, entries, root
_NODE = struct.Struct("<HHHH")  # low, high, flags, key size
_BRANCH, _LEAF, _OVERFLOW, _IS_META = 0x01, 0x02, 0x04, 0x08
_BIG_DATA, _SUB_DATABASE, _DUPLICATES = 0x01, 0x02, 0x04
_DUPSORT = 0x04
_NO_ROOT = (1 << 64) - 1
_MAX_DEPTH = 32


@dataclass(frozen=True, slots=True)
class Entry:
    """A key and the place of its value in the file."""

    key: bytes
    offset: int
    size_bytes: int


def data_file(path: str) -> str:
    """Return the data file of an LMDB environment, which is a folder or a file."""
    return os.path.join(path, "data.mdb") if os.path.isdir(path) else path


def scan_lmdb(path: str, *, database: str | None = None) -> Iterator[Entry]:
    """Yield all entries of an LMDB file, or of a named database in it, in the order of their keys.

    Raises:
        ValueError: The file is damaged, truncated, or unsupported.
    """
    with open(path, "rb", buffering=0) as file:
        yield from _Pages(path, file.fileno()).entries(database)


def change_mark(path: str) -> list[int]:
    """Return size, time and last transaction, which change with every write to the file."""
    with open(path, "rb", buffering=0) as file:
        status = os.fstat(file.fileno())
        return [status.st_size, status.st_mtime_ns, _Pages(path, file.fileno()).transaction]


class _Pages:
    """The pages of an open file."""

    def __init__(self, path: str, descriptor: int) -> None:
        self._path = path
        self._descriptor = descriptor
        self._size_bytes = os.fstat(descriptor).st_size
        first = self._meta(0)
        page_bytes: int = _DATABASE.unpack_from(first, 40)[0]
        if not 512 <= page_bytes <= 65536 or page_bytes & (page_bytes - 1):
            raise self._damage(0, f"it says that pages have {page_bytes} bytes")
        self._page_bytes = page_bytes
        metas = [first, self._meta(page_bytes)]
        # LMDB alternates between two meta pages; the later transaction counts.
        newest = max(metas, key=lambda meta: struct.unpack_from("<Q", meta, 144)[0])
        self._main = newest[88:136]
        last_page, self.transaction = struct.unpack_from("<QQ", newest, 136)
        if (last_page + 1) * page_bytes > self._size_bytes:
            raise ValueError(
                f"lmdb {path}: cut short: it has {self._size_bytes:,} bytes and should have "
                f"{(last_page + 1) * page_bytes:,}; copy it again"
            )

    def entries(self, database: str | None) -> Iterator[Entry]:
        root = self._main
        if database is not None:
            named = dict(self._sub_databases(root))
            if database.encode() not in named:
                known = ", ".join(repr(name.decode(errors="replace")) for name in named) or "none"
                raise ValueError(f"lmdb {self._path}: no database {database!r}; it has: {known}")
            root = named[database.encode()]
        for key, flags, offset, size in self._nodes(root):
            if not flags & _SUB_DATABASE:
                yield Entry(key, offset, size)

    def _sub_databases(self, root: bytes) -> Iterator[tuple[bytes, bytes]]:
        for key, flags, offset, size in self._nodes(root):
            if flags & _SUB_DATABASE and size == _DATABASE.size:
                yield key, os.pread(self._descriptor, size, offset)

    def _nodes(self, root: bytes) -> Iterator[tuple[bytes, int, int, int]]:
        """Yield the leaf nodes below a root, in order: key, flags, offset and size of each."""
        _, flags, _, _, _, _, _, page = _DATABASE.unpack(root)
        if flags & _DUPSORT:
            raise ValueError(
                f"lmdb {self._path}: keys with several values (DUPSORT) are not read; copy it to "
                f"a database without them"
            )
        if page == _NO_ROOT:
            return
        pending = [(page, 0)]
        seen = 0
        while pending:
            number, depth = pending.pop()
            seen += 1
            if depth > _MAX_DEPTH or seen * self._page_bytes > self._size_bytes:
                raise self._damage(number, "its pages lead in a circle")
            content, flags, places = self._page(number)
            if flags & _LEAF:
                for place in places:
                    yield self._leaf(number, content, place)
            else:
                children = []
                for place in places:
                    low, high, top, _ = self._node(number, content, place)
                    children.append((low | high << 16 | top << 32, depth + 1))
                pending.extend(reversed(children))

    def _page(self, number: int) -> tuple[bytes, int, tuple[int, ...]]:
        """Read a branch or leaf page: its content, its flags, and the places of its nodes."""
        content = os.pread(self._descriptor, self._page_bytes, number * self._page_bytes)
        if len(content) < self._page_bytes:
            raise self._damage(number, "it is beyond the end of the file")
        found, _, flags, lower, _ = _HEADER.unpack_from(content)
        kind = flags & 0x6F
        if found != number or kind not in (_BRANCH, _LEAF):
            raise self._damage(number, "it is not the page that another one points to")
        if not 16 <= lower <= self._page_bytes or lower % 2:
            raise self._damage(number, "its list of nodes is wrong")
        return content, flags, struct.unpack_from(f"<{(lower - 16) // 2}H", content, 16)

    def _node(self, number: int, content: bytes, place: int) -> tuple[int, int, int, int]:
        if place < 16 or place + 8 > self._page_bytes:
            raise self._damage(number, "a node lies outside it")
        return _NODE.unpack_from(content, place)

    def _leaf(self, number: int, content: bytes, place: int) -> tuple[bytes, int, int, int]:
        low, high, flags, key_bytes = self._node(number, content, place)
        size, start = low | high << 16, place + 8 + key_bytes
        if flags & _DUPLICATES:
            raise self._damage(number, "a key has several values")
        inside = 8 if flags & _BIG_DATA else size
        if start + inside > self._page_bytes:
            raise self._damage(number, "a value lies outside it")
        offset = number * self._page_bytes + start
        if flags & _BIG_DATA:
            offset = struct.unpack_from("<Q", content, start)[0] * self._page_bytes + 16
        if offset + size > self._size_bytes:
            raise self._damage(number, "a value is beyond the end of the file")
        return content[place + 8 : start], flags, offset, size

    def _meta(self, offset: int) -> bytes:
        content = os.pread(self._descriptor, 152, offset)
        if len(content) < 152:
            raise ValueError(
                f"lmdb {self._path}: {self._size_bytes:,} bytes are too few for an LMDB file; "
                f"copy it again"
            )
        magic, version, _, _ = _META.unpack_from(content, 16)
        flags = _HEADER.unpack_from(content)[2]
        if magic != _MAGIC and struct.unpack_from("<I", content, 24) == (_MAGIC,):
            raise ValueError(
                f"lmdb {self._path}: engine 1.0 of LMDB wrote it, expected a file of engine 0.9; "
                f"copy its entries into one that lmdb.open(..., lib_version=0) makes"
            )
        if magic != _MAGIC or version != _VERSION or not flags & _IS_META:
            raise ValueError(
                f"lmdb {self._path}: no LMDB file of format {_VERSION}, or its first pages are "
                f"damaged; copy it again, or check dataset.storage.path"
            )
        return content

    def _damage(self, page: int, what: str) -> ValueError:
        return ValueError(f"lmdb {self._path}: page {page} is damaged: {what}; copy it again")
