"""Read the rows of one data set of an HDF5 file.

Rows of variable length are read without the library, from the global heap (section III.E of the
file format). HDF5 2.0 never returns from a collection overwritten with zeros, and holds Python's
lock meanwhile.
"""

from __future__ import annotations

import io
import math
import struct
from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from penstock.core.sample import RecordError
from penstock.datasets.files.access import RangeFile
from penstock.datasets.files.group_cache import GroupCache
from penstock.datasets.records.table import by_part
from penstock.datasets.storages.hdf5.file import File, import_h5py

_COLLECTION = struct.Struct("<4sB3xQ")  # signature, version, size
_OBJECT = struct.Struct("<HH4xQ")  # number, references, size


class Rows:
    """The rows of a data set, read by chunk; see `ArrayStorage.columns`.

    Attributes:
        dtype: NumPy type, in the machine's byte order; object for texts and bytes.

    Args:
        dataset: The ``h5py.Dataset``.
        path: Its path, for messages.
        chunks: Cache of decoded chunks.
        is_raw: Return rows of variable length as bytes.

    RecordError: the data set is unreadable.
    """

    def __init__(
        self,
        file: File,
        dataset: Any,
        path: str,
        chunks: GroupCache,
        *,
        is_raw: bool,
    ) -> None:
        h5py = import_h5py()
        _refuse(dataset, path)
        self._file, self._dataset, self._path, self._chunks = file, dataset, path, chunks
        self.shape: tuple[int, ...] = dataset.shape
        kind = dataset.id.dtype
        text, items = h5py.check_string_dtype(kind), h5py.check_vlen_dtype(kind)
        if text is not None and text.length is None:
            items = np.dtype(np.uint8)
        self._is_text, self._varies, self._is_raw = text is not None, items is not None, is_raw
        kind = items if self._varies else kind
        is_plain = isinstance(kind, np.dtype) and not kind.subdtype and not kind.names
        is_number = not self._varies and is_plain and kind.kind in "biufc"
        is_plain = is_number or (is_plain and kind.kind in "biufcSV" and len(self.shape or ()) == 1)
        if not is_plain or not self.shape:
            raise RecordError(
                f"{path!r} has elements of the type {kind} and the shape {self.shape}, expected "
                f"rows of numbers, or [N] texts or bytes; name the data sets to read: "
                f"dataset.storage.fields={{image:images}}"
            )
        self._items = self._stored = np.dtype(kind.str)
        if self._varies:  # a row is its length, its collection in the heap, its object in that
            address = f"<u{file.h5.id.get_create_plist().get_sizes()[0]}"
            self._stored = np.dtype([("length", "<u4"), ("address", address), ("object", "<u4")])
        self.dtype = self._stored.newbyteorder("=") if is_number else np.dtype(object)
        in_memory = not is_number or h5py.h5t.py_create(kind).equal(dataset.id.get_type())
        offset = dataset.id.get_offset() if in_memory and dataset.chunks is None else None
        self._offset: int | None = offset  # None: compact, in chunks, or another type
        height = dataset.chunks[0] if dataset.chunks else max(1, len(self))
        self._ends = np.minimum(np.arange(0, len(self), height) + height, len(self))

    def __len__(self) -> int:
        return self.shape[0]

    def mapped(self) -> NDArray[Any] | None:
        """Map the data set, or its references, as stored; None if it is not contiguous."""
        if self._offset is None:
            return None
        size_bytes = math.prod(self.shape) * self._stored.itemsize
        content = self._file.ranges.view(self._offset, size_bytes)
        return content.view(self._stored).reshape(self.shape)

    def sizes(self) -> NDArray[np.int64]:
        """Return the bytes of every value, int64 [n]."""
        if not self._varies:
            return np.full(len(self), self._stored.itemsize)
        lengths = self._gathered(np.arange(len(self)))["length"]
        return lengths.astype(np.int64) * self._items.itemsize

    def __getitem__(self, rows: Any) -> NDArray[Any]:
        """Read rows; RecordError if one is damaged."""
        if isinstance(rows, slice):
            rows = np.arange(len(self))[rows]
        found = self._gathered(rows)
        if not self.dtype.hasobject:
            return found.astype(self.dtype, copy=False)
        values = np.empty(len(found), object)
        contents = self._from_heap(found) if self._varies else (value.tobytes() for value in found)
        for n, content in enumerate(contents):
            values[n] = self._value(content)
        return values

    def _gathered(self, rows: NDArray[np.int64]) -> NDArray[Any]:
        """Gather rows as they are stored: numbers, texts, or references."""
        found = np.empty((len(rows), *self.shape[1:]), self._stored)
        for number, places, local in by_part(self._ends, rows):
            first, last = int(self._ends[number - 1]) if number else 0, int(self._ends[number])
            try:
                block = self.mapped()
                if block is None:
                    key = self._file.ranges.path, self._path, number
                    block = self._chunks.get(key, partial(self._decoded, first, last))
            except RecordError as error:
                where = f"{self._path}: rows {first} to {last - 1}"
                raise RecordError(f"{where}: {error}") from error
            found[places] = block[local]
        return found

    def _decoded(self, first: int, last: int) -> tuple[NDArray[Any], int]:
        """Decode a chunk; return it with its size."""
        read = partial(self._dataset.__getitem__, slice(first, last))
        block = self._file.call(partial(self._references, first) if self._varies else read)
        return block, block.nbytes

    def _references(self, first: int) -> NDArray[Any]:
        """Decode a chunk of references as opaque values, which the library does not follow."""
        h5py = import_h5py()
        mask, content = self._dataset.id.read_direct_chunk((first,))
        block = np.empty(self._dataset.chunks, f"V{self._stored.itemsize}")
        kind, space = h5py.h5t.py_create(block.dtype), h5py.h5s.create_simple(block.shape)
        with h5py.File(io.BytesIO(), "w") as copy:
            plist = self._dataset.id.get_create_plist()
            dataset = h5py.h5d.create(copy.id, b"rows", kind, space, plist)
            dataset.write_direct_chunk((0,), content, mask)
            dataset.read(h5py.h5s.ALL, h5py.h5s.ALL, block)
        return block.view(self._stored)

    def _from_heap(self, references: NDArray[Any]) -> Iterator[bytes]:
        """Yield the content of each reference [n]."""
        collections: dict[int, dict[int, memoryview]] = {}
        base = self._file.h5.userblock_size  # the offset of address 0
        for length, address, number in references.tolist():
            size_bytes = length * self._items.itemsize
            if size_bytes and address not in collections:
                collections[address] = _collection(self._file.ranges, base + address)
            content = collections[address].get(number, b"")[:size_bytes] if size_bytes else b""
            if len(content) != size_bytes:
                raise RecordError("a value is not in its collection")
            yield bytes(content)

    def _value(self, content: bytes) -> Any:
        if self._is_raw or (not self._varies and not self._is_text):
            return content
        if not self._is_text:
            items = np.frombuffer(content, self._items)
            return items.astype(self._items.newbyteorder("="), copy=False)
        try:
            return content.rstrip(b"\0").decode()
        except UnicodeDecodeError:
            raise RecordError(f"{self._path}: a text is not UTF-8") from None


def _refuse(dataset: Any, path: str) -> None:
    """Raise `RecordError` for external or unwritten data."""
    h5py = import_h5py()
    plist = dataset.id.get_create_plist()
    if dataset.is_virtual or dataset.external:
        raise RecordError(f"the data of {path!r} is in other files; copy it here")
    is_whole = dataset.id.get_space_status() == h5py.h5d.SPACE_STATUS_ALLOCATED
    has_value = plist.fill_value_defined() == h5py.h5d.FILL_VALUE_USER_DEFINED
    if dataset.size and not is_whole and not has_value:
        raise RecordError(
            f"rows of {path!r} were never written; write them, or shorten the data set"
        )


def _collection(file: RangeFile, start: int) -> dict[int, memoryview]:
    """Map the objects of a collection of the heap by number."""
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
        objects[number] = content[at : at + object_bytes]
        at += -(-object_bytes // 8) * 8
    return objects
