"""Values of variable length in HDF5 files: the global heap (HDF5 file format, section III.E).

An element of such a dataset is a length, the address of a collection in the file and the number
of an object in it. Collections are read as they are, and every number in them is checked before
it is followed.
"""

from __future__ import annotations

import struct
from typing import Any

from datasets.formats.hdf5_filters import DamagedChunk
from datasets.shared_file import SharedFile

ELEMENT = "<u4,<u8,<u4"  # length in items, address, number of the object
_COLLECTION = struct.Struct("<4sB3xQ")  # signature, version, size
_OBJECT = struct.Struct("<HH4xQ")  # number, references, size
_FIRST_BYTES = 4096  # the least size of a collection
_MOST_FIRST_BYTES = 1 << 20
_MOST_COLLECTION_BYTES = 1 << 26


def read_collection(file: SharedFile, start: int, *, file_bytes: int) -> dict[int, bytes]:
    """All objects of a collection, by their numbers: where several are wanted.

    Finding one takes going through those before it, so finding each alone takes the square.

    Args:
        file: The file.
        start: Where the collection begins.
        file_bytes: Size of the file.

    Raises:
        DamagedChunk: It is not there, or is larger than any that is written.
        datasets.shared_file.EndOfFile: The file ends before it.
    """
    signature, version, size_bytes = _COLLECTION.unpack(file.read(start, _COLLECTION.size))
    if signature != b"GCOL" or version != 1 or start + size_bytes > file_bytes:
        raise DamagedChunk("the place of a value holds something else")
    if size_bytes > _MOST_COLLECTION_BYTES:
        raise DamagedChunk(f"a collection of {size_bytes:,} bytes")
    content = file.read(start, size_bytes)
    objects: dict[int, bytes] = {}
    at = _COLLECTION.size
    while at + _OBJECT.size <= size_bytes:
        number, _, object_bytes = _OBJECT.unpack_from(content, at)
        at += _OBJECT.size
        if number == 0 or object_bytes > size_bytes - at:  # the free space at the end; damage
            break
        objects.setdefault(number, content[at : at + object_bytes])
        at += -(-object_bytes // 8) * 8
    return objects


def read_heap(
    file: SharedFile, base: int, element: Any, item_bytes: int, *, file_bytes: int
) -> bytes:
    """The value of an element.

    Args:
        file: The file.
        base: Bytes before the address 0: the user block.
        element: Length, address and number, as `ELEMENT` has them.
        item_bytes: Size of an item of the value.
        file_bytes: Size of the file.

    Raises:
        DamagedChunk: It is not there.
        datasets.shared_file.EndOfFile: The file ends before it.
    """
    length, address, number = element
    if length == 0:
        return b""
    start, size_bytes = base + address, length * item_bytes
    if start + size_bytes > file_bytes:
        raise DamagedChunk("a value lies outside the file")
    # Mostly a value is alone in its collection, and comes with the first read.
    first = max(_FIRST_BYTES, _COLLECTION.size + _OBJECT.size + size_bytes)
    head = file.read_upto(start, min(first, _MOST_FIRST_BYTES))

    def part(at: int, count: int) -> bytes:
        if at + count <= len(head):
            return head[at : at + count]
        return file.read(start + at, count)

    signature, version, collection_bytes = _COLLECTION.unpack(part(0, _COLLECTION.size))
    if signature != b"GCOL" or version != 1 or start + collection_bytes > file_bytes:
        raise DamagedChunk("the place of a value holds something else")
    at = _COLLECTION.size
    while at + _OBJECT.size <= collection_bytes:
        found, _, object_bytes = _OBJECT.unpack(part(at, _OBJECT.size))
        at += _OBJECT.size
        if found == number:
            if size_bytes <= object_bytes <= collection_bytes - at:
                return part(at, size_bytes)
            break
        if found == 0:  # the free space at the end
            break
        at += -(-object_bytes // 8) * 8
    raise DamagedChunk("a value is not in the collection that should hold it")
