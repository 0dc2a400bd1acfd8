"""Read rows of variable length from the global heap of an HDF5 file.

HDF5 2.0 never returns from a heap collection overwritten with zeros, and holds Python's lock
meanwhile. So this module reads these rows without the library, by section III.E of the file format.
"""

from __future__ import annotations

import struct
from typing import Any

from numpy.typing import NDArray

from penstock.core.sample import RecordError
from penstock.datasets.files.access import RangeFile
from penstock.datasets.storages.hdf5.file import DAMAGE

_COLLECTION = struct.Struct("<4sB3xQ")  # signature, version, size
_OBJECT = struct.Struct("<HH4xQ")  # number, references, size


def read_rows(
    file: RangeFile, base: int, references: NDArray[Any], item_bytes: int
) -> list[bytes | RecordError]:
    """Read the rows of references [n]; rows of damaged collections are `RecordError`.

    Args:
        file: The file.
        base: Offset of address 0 in the file.
        references: See `File.reference`; the length counts items.
        item_bytes: Size of an item.
    """
    collections: dict[int, dict[int, memoryview] | RecordError] = {}
    rows: list[bytes | RecordError] = []
    for length, address, number in references.tolist():
        if not length:
            rows.append(b"")
            continue
        if address not in collections:
            try:
                collections[address] = _objects(file, base + address)
            except DAMAGE as error:
                collections[address] = RecordError(str(error))
        objects = collections[address]
        if isinstance(objects, RecordError):
            rows.append(objects)
            continue
        content = objects.get(number, b"")[: length * item_bytes]
        is_whole = len(content) == length * item_bytes
        rows.append(bytes(content) if is_whole else RecordError("a value is not in its collection"))
    return rows


def _objects(file: RangeFile, start: int) -> dict[int, memoryview]:
    """Map the objects of a collection by number."""
    header = file.view(start, _COLLECTION.size).data
    signature, version, size_bytes = _COLLECTION.unpack(header)
    if signature != b"GCOL" or version != 1:
        raise RecordError("no collection of values where a row refers to one")
    content = file.view(start, size_bytes).data
    objects = {}
    at = _COLLECTION.size
    while at + _OBJECT.size <= size_bytes:
        number, _, object_bytes = _OBJECT.unpack_from(content, at)
        if number == 0:  # the rest is free
            break
        at += _OBJECT.size
        if object_bytes > size_bytes - at:
            raise RecordError("a value is larger than its collection")
        objects[number] = content[at : at + object_bytes]
        at += -(-object_bytes // 8) * 8
    return objects
