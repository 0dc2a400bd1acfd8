"""The LMDB files that packing writes: values by their number, laid out page by page.

Sorted values need no insertion: every leaf page and the pages of its large values are written one
behind the other, a part at a time, and the branch pages above them at the end, as ``mdb_copy -c``
leaves a file. The format is that of LMDB 0.9 (mdb.c, struct MDB_page, MDB_node and MDB_meta),
which `datasets.formats.lmdb_pages` reads. A part begins on a leaf page of its own, so where its
values lie follows from their sizes and from the page that it begins on.
"""

from __future__ import annotations

import os
import struct
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

INDEX_NAME = "index.arrow"
DATA_NAME = "data.mdb"
_PAGE = 4096
_HEADER = 16
_ROOM = _PAGE - _HEADER
_FIRST_PAGE = 2  # behind the two meta pages
_BRANCH, _LEAF, _OVERFLOW, _META, _BIG = 1, 2, 4, 8, 1
_KEY = 10  # bytes of a key: the number in decimals
_NODE = 8 + _KEY  # a node without its value
# The most that LMDB keeps in a leaf: two nodes are to fit (mdb.c, me_nodemax).
_INSIDE = (_ROOM // 2 & ~1) - 2 - _NODE
_ZEROS = memoryview(bytes(_PAGE))
_PIECES = 1000  # a call takes 1024 (IOV_MAX)
Buffer = bytes | memoryview

_PAGE_HEAD = np.dtype([("page", "<u8"), ("pad", "<u2"), ("flags", "<u2"), ("pages", "<u4")])
_NODE_HEAD = np.dtype(
    [("size", "<u4"), ("flags", "<u2"), ("key_bytes", "<u2"), ("key", "u1", _KEY), ("page", "<u8")]
)
# While it grows, the first page says where the last part that was written begins and ends, by
# the number of its first value and its page.
_STATE = struct.Struct("<8sQQQQ")
_GROWING = b"growing\0"


@dataclass(frozen=True, slots=True)
class Placement:
    """Where the values of a part lie, counted from the page that it begins on.

    Attributes:
        inside: Whether a value lies in its leaf, bool [n].
        nodes: Bytes of a value's node in its leaf, int64 [n].
        leaf_starts: The first value of each leaf, and the number of values, int64 [m + 1].
        leaf_pages: The page of each leaf, int64 [m].
        pages: The first page of a value that lies outside, int64 [n].
        page_counts: How many pages such a value has, 0 for one inside, int64 [n].
        offsets: The first byte of each value, int64 [n].
        count: Pages of the part.
    """

    inside: NDArray[np.bool_]
    nodes: NDArray[np.int64]
    leaf_starts: NDArray[np.int64]
    leaf_pages: NDArray[np.int64]
    pages: NDArray[np.int64]
    page_counts: NDArray[np.int64]
    offsets: NDArray[np.int64]
    count: int


def place_values(sizes: NDArray[Any]) -> Placement:
    """Where the values of a part lie.

    Args:
        sizes: Bytes of each, integer [n].
    """
    sizes = sizes.astype(np.int64)
    inside = sizes <= _INSIDE
    nodes = _NODE + np.where(inside, sizes, 8)
    nodes += nodes & 1
    page_counts = np.where(inside, 0, (_HEADER + sizes - 1) // _PAGE + 1)
    ends = np.cumsum(nodes + 2)  # with the two bytes that point to it
    leaf_starts = _fill(ends.tolist())
    before = np.concatenate([[0], np.cumsum(page_counts)])
    leaf_pages = before[leaf_starts[:-1]] + np.arange(len(leaf_starts) - 1)
    leaves = np.repeat(np.arange(len(leaf_pages)), np.diff(leaf_starts))
    pages = before[:-1] + leaves + 1
    # Nodes end where the page does, in order.
    node_ends = np.cumsum(nodes)
    last = node_ends[leaf_starts[1:] - 1][leaves] if len(sizes) else node_ends
    in_page = _PAGE - (last - node_ends) - nodes
    offsets = np.where(
        inside, leaf_pages[leaves] * _PAGE + in_page + _NODE, pages * _PAGE + _HEADER
    )
    count = int(before[-1]) + len(leaf_pages)
    return Placement(inside, nodes, leaf_starts, leaf_pages, pages, page_counts, offsets, count)


def _fill(ends: list[int]) -> NDArray[np.int64]:
    """The first node of each leaf, and the number of nodes, given where nodes end."""
    starts, filled = [0], 0
    while starts[-1] < len(ends):
        starts.append(bisect_right(ends, filled + _ROOM, lo=starts[-1]))
        filled = ends[starts[-1] - 1]
    return np.array(starts, np.int64)


def append_values(folder: Path, first: int, values: Sequence[Buffer], sizes: NDArray[Any]) -> None:
    """Write the values of a part behind those that are there, or over those of the last part.

    Args:
        folder: Of data.mdb.
        first: Number of the first value: the part follows the last one, or is the last one.
        values: All values.
        sizes: Bytes of each, integer [n].
    """
    path = folder / DATA_NAME
    with open(path, "r+b" if path.exists() else "w+b", buffering=0) as file:
        start = _start_of(file.read(_STATE.size), first)
        placed = place_values(sizes)
        stop = start + placed.count
        file.seek(start * _PAGE)
        _write(file.fileno(), _pages(values, sizes.astype(np.int64), placed, first, start))
        if os.fstat(file.fileno()).st_size > stop * _PAGE:  # of what was killed
            file.truncate(stop * _PAGE)
        file.seek(0)
        file.write(_STATE.pack(_GROWING, first, start, first + len(sizes), stop))
        os.fsync(file.fileno())


def _write(descriptor: int, pieces: Iterator[Buffer]) -> None:
    """Write pieces where they are, without putting them together first."""
    while some := list(islice(pieces, _PIECES)):
        written, size_bytes = os.writev(descriptor, some), sum(map(len, some))
        if written < size_bytes:  # more than a call takes, or than the disk has room for
            rest = memoryview(b"".join(some))[written:]
            while rest:
                rest = rest[os.write(descriptor, rest) :]


def _start_of(state: bytes, first: int) -> int:
    """The page that a part begins on."""
    if first == 0:
        return _FIRST_PAGE
    growing, *numbers = _STATE.unpack(state)
    assert growing == _GROWING, "a file that is finished does not grow"
    last, last_page, following, next_page = numbers
    assert first in (last, following), (first, last, following)
    return int(next_page if first == following else last_page)


def _pages(
    values: Sequence[Buffer],
    sizes: NDArray[np.int64],
    placed: Placement,
    first: int,
    start: int,
) -> Iterator[Buffer]:
    """The bytes of a part, piece by piece."""
    count = len(sizes)
    nodes = np.zeros(count, _NODE_HEAD)
    nodes["size"] = sizes
    nodes["flags"] = np.where(placed.inside, 0, _BIG)
    nodes["key_bytes"] = _KEY
    nodes["key"] = _digits(np.arange(first, first + count))
    nodes["page"] = placed.pages + start
    node_bytes = memoryview(nodes.tobytes())
    heads = np.zeros(count, _PAGE_HEAD)
    heads["page"], heads["flags"] = placed.pages + start, _OVERFLOW
    heads["pages"] = placed.page_counts
    head_bytes = memoryview(heads.tobytes())
    inside = placed.inside.tolist()
    rest = (placed.page_counts * _PAGE - _HEADER - sizes).tolist()
    width = _NODE_HEAD.itemsize
    leaf_starts, leaf_pages = placed.leaf_starts.tolist(), placed.leaf_pages.tolist()
    for a, b, page in zip(leaf_starts, leaf_starts[1:], leaf_pages, strict=False):
        yield _page_head(start + page, _LEAF, placed.nodes[a:b])
        uneven = range(a, b) if any(inside[a:b]) else ()
        if not uneven:
            yield node_bytes[a * width : b * width]
        for i in uneven:
            if inside[i]:
                yield node_bytes[i * width : i * width + _NODE]
                yield values[i]
                yield _ZEROS[: len(values[i]) & 1]
            else:
                yield node_bytes[i * width : (i + 1) * width]
        for i in range(a, b):
            if not inside[i]:
                yield head_bytes[i * _HEADER : (i + 1) * _HEADER]
                yield values[i]
                yield _ZEROS[: rest[i]]


def _page_head(page: int, flags: int, nodes: NDArray[np.int64]) -> bytes:
    """A leaf or branch page up to its nodes, which end where it does."""
    upper = _PAGE - int(nodes.sum())
    places = (upper + np.cumsum(nodes) - nodes).astype("<u2").tobytes()
    lower = _HEADER + len(places)
    return struct.pack("<QHHHH", page, 0, flags, lower, upper) + places + bytes(upper - lower)


def _digits(numbers: NDArray[np.int64]) -> NDArray[np.uint8]:
    """Numbers as decimals with leading zeros, uint8 [n, 10]."""
    powers = 10 ** np.arange(_KEY - 1, -1, -1, dtype=np.int64)
    return (numbers[:, None] // powers % 10 + ord("0")).astype(np.uint8)


def finish_file(folder: Path, parts: Sequence[NDArray[Any]]) -> NDArray[np.int64]:
    """Write what lies above the leaves; the file is whole then.

    Args:
        folder: Of data.mdb.
        parts: Bytes of each value, integer [n], of each part.

    Returns:
        The first byte of each value, int64 [n].
    """
    page, first = _FIRST_PAGE, 0
    offsets, children, numbers = [], [], []
    large = 0
    for sizes in parts:
        placed = place_values(sizes)
        offsets.append(placed.offsets + page * _PAGE)
        children.append(placed.leaf_pages + page)
        numbers.append(placed.leaf_starts[:-1] + first)
        large += int(placed.page_counts.sum())
        page, first = page + placed.count, first + len(sizes)
    level, keys = np.concatenate(children), np.concatenate(numbers)
    leaves, depth, branches = len(level), 1, []
    while len(level) > 1:
        pages, firsts = [], []
        # Evenly: a branch page with one child alone is none (mdb.c, mdb_page_search_root).
        for inside in np.array_split(np.arange(len(level)), -(-len(level) // _CHILDREN)):
            branches.append(_branch(page, keys[inside], level[inside]))
            pages.append(page)
            firsts.append(keys[inside[0]])
            page += 1
        level, keys, depth = np.array(pages), np.array(firsts), depth + 1
    counts = depth, len(branches), leaves, large, first
    with open(folder / DATA_NAME, "r+b") as file:
        file.seek((page - len(branches)) * _PAGE)
        file.writelines(branches)
        file.truncate(page * _PAGE)
        file.seek(0)
        file.write(_meta(0, page, (0, 0, 0, 0, 0), None) + _meta(1, page, counts, int(level[0])))
        file.flush()
        os.fsync(file.fileno())
    return np.concatenate(offsets)


_CHILDREN = 1 + (_ROOM - 8 - 2) // (_NODE + 2)


def _branch(page: int, keys: NDArray[np.int64], children: NDArray[np.int64]) -> bytes:
    """A branch page; its first node has no key."""
    nodes = np.full(len(keys), _NODE)
    nodes[0] = 8
    found = [_page_head(page, _BRANCH, nodes)]
    for i, (key, child) in enumerate(zip(keys.tolist(), children.tolist(), strict=True)):
        text = b"%010d" % key if i else b""
        # 48 bits of the page; the last 16 stand where a leaf's flags do.
        found.append(child.to_bytes(6, "little") + struct.pack("<H", len(text)) + text)
    return b"".join(found)


def _meta(number: int, pages: int, counts: tuple[int, ...], root: int | None) -> bytes:
    """A meta page: the later of the two counts, which is the second."""
    depth, branch_pages, leaf_pages, large_pages, entries = counts
    nothing = (1 << 64) - 1
    content = struct.pack("<QHHHH", number, 0, _META, 0, 0)
    content += struct.pack("<IIQQ", 0xBEEFC0DE, 1, 0, pages * _PAGE)
    # The database of free pages has integer keys, and the size of pages in place of its own.
    content += struct.pack("<IHHQQQQQ", _PAGE, 8, 0, 0, 0, 0, 0, nothing)
    content += struct.pack(
        "<IHHQQQQQ", 0, 0, depth, branch_pages, leaf_pages, large_pages, entries,
        nothing if root is None else root,
    )  # fmt: skip
    content += struct.pack("<QQ", 1 if root is None else pages - 1, number)
    return content.ljust(_PAGE, b"\0")
