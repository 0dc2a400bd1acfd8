"""Read the rows of one data set of an HDF5 file.

An array stored as in memory is mapped, so that threads gather its rows without the library's
lock. Other arrays are read by chunk, and decoded chunks are cached.
"""

from __future__ import annotations

import io
import math
from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from penstock.core.record_codec import unpack_fields
from penstock.core.sample import RecordError
from penstock.datasets.storages.hdf5.file import DAMAGE, File
from penstock.datasets.storages.hdf5.heap import read_rows

MISSING = object()
"""Value of a field that a packed record lacks."""


class RowReader:
    """Reads the rows of a data set.

    Attributes:
        shape: Its shape, with the axes of its elements.
        dtype: NumPy type of an element in the file.
        native: The same in the machine's byte order.
        varies: Whether rows have variable length.

    Args:
        dataset: The ``h5py.Dataset``.
        path: Its path, for messages.
        holds: Content of rows of variable length: ``bytes``, ``packed`` (see `core.record_codec`),
            or empty for an array.

    Raises:
        RecordError: The data set is unreadable; the message is the cause.
    """

    def __init__(self, file: File, dataset: Any, path: str, holds: str) -> None:
        import h5py

        self._file = file
        self.dataset = dataset
        self.path = path
        self.holds = holds
        self._refuse()
        dtype, axes = dataset.id.dtype.subdtype or (dataset.id.dtype, ())
        self.shape: tuple[int, ...] = (*dataset.shape, *axes)
        text = h5py.check_string_dtype(dtype)
        items = h5py.check_vlen_dtype(dtype)
        if text is not None and text.length is None:
            items = np.dtype(np.uint8)
        self.is_text = text is not None
        self.varies = items is not None
        self.dtype: Any = items if self.varies else dtype
        if not isinstance(self.dtype, np.dtype) or self.dtype.kind not in "biufcSV":
            raise RecordError(self._unread("numbers, text or bytes"))
        if self.dtype.subdtype or self.dtype.names:
            raise RecordError(self._unread("single values"))
        self.native = np.dtype(self.dtype.str).newbyteorder("=")
        self.is_array = not self.varies and self.native.kind in "biufc"
        self.is_ids = self.is_array and self.native.kind in "iub" and len(self.shape) == 1
        self.count: int = self.shape[0] if self.shape else 0
        self._stored = file.reference if self.varies else np.dtype(self.dtype.str)
        self._offset = self._find_offset(np.dtype((self._stored, axes)))

    @property
    def row_bytes(self) -> int:
        """Size of a row of fixed length."""
        return math.prod(self.shape[1:]) * self.native.itemsize

    def whole(self) -> list[Any]:
        """Read all values.

        Raises:
            RecordError: A value is unreadable.
        """
        values = self.values(np.arange(self.count))
        if wrong := next((value for value in values if isinstance(value, RecordError)), None):
            raise wrong
        return values

    def values(self, rows: NDArray[np.int64]) -> list[Any]:
        """Read the values of rows [n]; unreadable values are `RecordError`."""
        found: list[Any] = [None] * len(rows)
        for places, local, block in self._blocks(rows):
            is_bad = isinstance(block, RecordError)
            values = [block] * len(places) if is_bad else self._values(block, local.tolist())
            for place, value in zip(places.tolist(), values, strict=True):
                found[place] = value
        return found

    def gather(self, places: NDArray[Any], rows: NDArray[np.int64], out: NDArray[Any]) -> None:
        """Copy rows [n] to their places [n] in an array.

        Raises:
            RecordError: A row is unreadable.
        """
        for at, local, block in self._blocks(rows):
            if isinstance(block, RecordError):
                raise block
            is_all = len(at) == len(out) and np.array_equal(at, places)
            if is_all and block.dtype == out.dtype and block.flags.aligned:
                # In the default mode NumPy would copy through a buffer.
                np.take(block, local, axis=0, out=out, mode="clip")
            else:
                out[places[at]] = block[local]

    def sizes(self) -> Any:
        """Return the bytes of every row, int64 [n], or one number if all rows are equal."""
        if not self.varies:
            return self.row_bytes
        sizes = np.zeros(self.count, np.int64)
        for places, local, block in self._blocks(np.arange(self.count)):
            if isinstance(block, RecordError):
                raise block
            sizes[places] = block[local]["length"]
        return sizes * self.native.itemsize

    def _blocks(
        self, rows: NDArray[np.int64]
    ) -> Iterator[tuple[NDArray[np.int64], NDArray[np.int64], Any]]:
        """Read the blocks that contain rows, each block once.

        Yields:
            Places in `rows`, int64 [m]; their rows in the block, int64 [m]; and the block [k, ...],
            of references for rows of variable length, or `RecordError`.
        """
        block: NDArray[Any] | RecordError
        if self._offset is not None:
            try:
                size_bytes = math.prod(self.shape) * self._stored.itemsize
                view = self._file.shared.view(self._offset, size_bytes)
                block = view.view(self._stored).reshape(self.shape)
            except DAMAGE as error:
                block = RecordError(str(error))
            yield np.arange(len(rows)), rows, block
            return
        height = self.dataset.chunks[0] if self.dataset.chunks else max(1, self.count)
        if not len(rows):
            return
        order = np.argsort(rows, kind="stable")
        numbers, starts = np.unique(rows[order] // height, return_index=True)
        for number, places in zip(numbers.tolist(), np.split(order, starts[1:]), strict=True):
            first, last = number * height, min((number + 1) * height, self.count)
            key = self._file.path, self.path, number
            try:
                block = self._file.chunks.get(key, partial(self._decoded, first, last))
            except DAMAGE as error:
                block = RecordError(f"rows {first} to {last - 1}: {error}")
            yield places, rows[places] - first, block

    def _values(self, block: NDArray[Any], rows: list[int]) -> list[Any]:
        """Convert rows of a block to values."""
        if self.varies:
            base = self._file.h5.userblock_size
            values = read_rows(self._file.shared, base, block[rows], self.native.itemsize)
            return [v if isinstance(v, RecordError) else self._value(v) for v in values]
        if self.is_array:
            return block[rows].tolist() if block.ndim == 1 else [_native(block[n]) for n in rows]
        return [self._value(block[n].tobytes()) for n in rows]

    def _value(self, content: bytes) -> Any:
        if self.is_text and self.holds != "bytes":
            try:
                return content.rstrip(b"\0").decode()
            except UnicodeDecodeError:
                return RecordError("a text is not UTF-8")
        if self.holds == "packed":
            try:
                return unpack_fields(content, 0)["value"] if content else MISSING
            except (ValueError, KeyError, TypeError, IndexError):
                return RecordError("a packed value cannot be read")
        is_bytes = self.holds == "bytes" or not self.varies
        return content if is_bytes else _native(np.frombuffer(content, self.dtype))

    def _refuse(self) -> None:
        """Raise `RecordError` for external, empty, unreadably compressed or unwritten data."""
        import h5py

        dataset, plist = self.dataset, self.dataset.id.get_create_plist()
        if dataset.is_virtual or dataset.external:
            raise RecordError(f"the data of {self.path!r} is in other files; copy it here")
        if dataset.shape is None:
            raise RecordError(f"{self.path!r} is empty; leave it out")
        for number in range(plist.get_nfilters()):
            code, _, _, name = plist.get_filter(number)
            if not h5py.h5z.filter_avail(code):
                shown = f"{name.decode('utf-8', 'replace')!r} ({code})"
                raise RecordError(
                    f"{self.path!r} is compressed by the filter {shown}; run: "
                    f"pip install hdf5plugin, and add imports=[hdf5plugin]"
                )
        if plist.fill_value_defined() == h5py.h5d.FILL_VALUE_USER_DEFINED:
            return
        if dataset.chunks is not None:
            lengths = zip(dataset.shape, dataset.chunks, strict=True)
            count = math.prod(-(-length // chunk) for length, chunk in lengths)
            if missing := max(0, count - dataset.id.get_num_chunks()):
                raise RecordError(
                    f"{missing:,} of {count:,} chunks of {self.path!r} were never written; write "
                    f"them, or shorten the data set"
                )
        elif plist.get_layout() == h5py.h5d.CONTIGUOUS and dataset.size:
            if dataset.id.get_offset() is None:
                raise RecordError(f"{self.path!r} was never written; write it")

    def _unread(self, expected: str) -> str:
        return (
            f"{self.path!r} has elements of the type {self.dtype}, expected {expected}; name the "
            f"data sets to read: dataset.storage.fields={{image:images}}"
        )

    def _find_offset(self, element: np.dtype[Any]) -> int | None:
        """Return the offset of elements stored as in memory, or None."""
        import h5py

        dataset = self.dataset.id
        if dataset.get_create_plist().get_layout() != h5py.h5d.CONTIGUOUS:
            return None
        if self.is_array and not h5py.h5t.py_create(element).equal(dataset.get_type()):
            return None
        offset: int | None = dataset.get_offset()
        return offset

    def _decoded(self, first: int, last: int) -> tuple[NDArray[Any], int]:
        """Decode a chunk; return it with its size."""
        read = partial(self._references, first) if self.varies else lambda: self.dataset[first:last]
        block = self._file.asked(read)
        block.flags.writeable = False
        return block, block.nbytes

    def _references(self, first: int) -> NDArray[Any]:
        """Decode a chunk of references as opaque values, which the library does not follow."""
        import h5py

        mask, content = self.dataset.id.read_direct_chunk((first,))
        block = np.empty(self.dataset.chunks, f"V{self._stored.itemsize}")
        kind, space = h5py.h5t.py_create(block.dtype), h5py.h5s.create_simple(block.shape)
        with h5py.File(io.BytesIO(), "w") as copy:
            plist = self.dataset.id.get_create_plist()
            dataset = h5py.h5d.create(copy.id, b"rows", kind, space, plist)
            dataset.write_direct_chunk((0,), content, mask)
            dataset.read(h5py.h5s.ALL, h5py.h5s.ALL, block)
        return block.view(self._stored)


def _native(array: NDArray[Any]) -> NDArray[Any]:
    """Return an array in the machine's byte order, aligned; without a copy if it is both."""
    dtype = array.dtype.newbyteorder("=")
    return array if dtype == array.dtype and array.flags.aligned else array.astype(dtype)
