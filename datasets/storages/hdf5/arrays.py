"""Reads datasets of HDF5 files: rows grouped by chunk, decoded chunks cached, plain arrays mapped.

The library does the parsing and decoding, under its one lock for all threads. An array that lies in
the file in one piece, as it is in memory, is mapped from the place that the library names, so that
gathering rows takes no lock and no call for each.
"""

from __future__ import annotations

import bz2
import math
import os
import struct
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from functools import cached_property, partial
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from penstock.core.sample import inflated_too_large
from penstock.datasets.files.access import SharedFile, retried
from penstock.datasets.files.data_files import DataFiles
from penstock.datasets.files.group_cache import GroupCache
from penstock.datasets.files.zip_members import MOST_EXPANDED
from penstock.datasets.storages.hdf5.guard import alive, check_collection
from penstock.datasets.storages.hdf5.objects import (
    DAMAGE,
    Damaged,
    describe,
    explained,
    follow,
    open_file,
    refuse_unwritten,
)

T = TypeVar("T")
_MOST_OPEN = 1024  # files, and datasets in them
_DEFLATE, _BZIP2, _LZF, _BITSHUFFLE, _ZSTD = 1, 307, 32000, 32008, 32015  # numbers of filters
_ANNOUNCED = {  # filters whose streams begin with what they hold
    4: struct.Struct("<I"),  # szip
    32001: struct.Struct("<4xI"),  # Blosc
    32004: struct.Struct(">Q"),  # LZ4
    _BITSHUFFLE: struct.Struct(">Q"),
}


class OpenFiles:
    """The files of a data set as a process has opened them; its threads share it.

    Args:
        files: The files.
        group: The group in each that holds the data.
        cache_bytes: How much is kept of decoded chunks.
        max_bytes: What a record may take: what is compressed may not become absurdly more.
    """

    def __init__(self, files: DataFiles, group: str, cache_bytes: int, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._files = files
        self._group = group
        self._opened = GroupCache(_MOST_OPEN)
        self._chunks = GroupCache(cache_bytes)

    def __getitem__(self, number: int) -> OpenFile:
        """A file by number.

        Raises:
            Damaged, MissingFile: It cannot be opened.
            OSError: The disk has trouble that did not pass.
        """
        opened: OpenFile = self._opened.get(number, lambda: (self._open(number), 1))
        return opened

    def reader(self, number: int, path: str) -> ArrayReader:
        """Give the reader of a dataset of a file, by its path below the group of the data."""
        reader: ArrayReader = self._opened.get(
            (number, path), lambda: (self[number].reader(path), 1)
        )
        return reader

    def _open(self, number: int) -> OpenFile:
        path, root = self._files.paths[number], self._files.root
        return OpenFile(path, root, self._group, self._chunks, self._max_bytes)


class OpenFile:
    """One open file.

    Args:
        path: The file.
        root: The folder of the data set.
        group: The group that holds the data.
        chunks: The cache of decoded chunks.
        max_bytes: See `OpenFiles`.
    """

    def __init__(
        self, path: str, root: str, group: str, chunks: GroupCache, max_bytes: int
    ) -> None:
        self.path = path
        self.chunks = chunks
        self.max_bytes = max_bytes
        self.size_bytes = os.path.getsize(path) if os.path.exists(path) else 0
        self.shared = SharedFile(path, root=root)
        self.file = self.asked(lambda: open_file(path))
        self.top = self.asked(lambda: follow(self.file["/"], group))
        self.address_bytes = self.asked(lambda: self.file.id.get_create_plist().get_sizes()[0])
        self.checked: set[int] = set()  # collections of values of any length

    def asked(self, ask: Callable[[], T]) -> T:
        """Ask the library; passing trouble is retried.

        Raises:
            Damaged: It raised; the message is its reason.
            MissingFile: The file is gone.
            OSError: Trouble that did not pass.
        """

        def explaining() -> T:
            alive()
            with explained():
                return ask()

        return retried(explaining, path=self.path, root=self.shared.root)

    def reader(self, path: str) -> ArrayReader:
        """Make a reader of a dataset below the group of the data."""
        return ArrayReader(self, self.asked(lambda: follow(self.top, path)), path)

    def close(self) -> None:
        """Close it, so that it can be written again."""
        self.file.close()


class ArrayReader:
    """Reads one dataset.

    Args:
        file: Its file.
        dataset: The ``h5py.Dataset``.
        path: Its path, for messages and for the cache.
    """

    def __init__(self, file: OpenFile, dataset: Any, path: str) -> None:
        self._file = file
        self.dataset = dataset
        self._path = path
        self.array = file.asked(lambda: describe(dataset, path))
        self.offset: int | None = file.asked(self._find_offset)
        self._shape: tuple[int, ...] = dataset.shape
        self._height = dataset.chunks[0] if dataset.chunks else max((1, *self._shape[:1]))
        self._in_memory = np.dtype(object)
        if not self.array.is_listed:
            self._in_memory = np.dtype((self.array.native, self.array.shape[len(self._shape) :]))
        self._type: Any = None  # of elements in memory, as the library has it
        element_bytes = dataset.id.get_type().get_size()
        self._chunk_bytes = math.prod(dataset.chunks or (0,)) * element_bytes
        self._stream = file.asked(lambda: stream_of(dataset))
        # Checksums and headers of filters before the last one stand in its stream too.
        self._most_bytes = self._chunk_bytes + self._chunk_bytes // 16 + 1024
        self._checked: set[int] = set()  # rows whose chunks become no more than they should

    def refuse_unwritten(self) -> None:
        """Raise `Refused` where parts were never written, and no value is there to fill them."""
        size_bytes = self._file.size_bytes
        self._file.asked(lambda: refuse_unwritten(self.dataset, self._path, file_bytes=size_bytes))

    def whole(self) -> Any:
        """Read all elements, as the library gives them, but lists in the machine's order of bytes.

        Raises:
            Damaged: It cannot be read.
        """
        stored_bytes = self._file.asked(self.dataset.id.get_storage_size)
        self._refuse(math.prod(self.array.shape) * self.array.native.itemsize, stored_bytes)
        self._check_chunks(0, max((1, *self._shape[:1])))
        if self.array.is_listed:
            self._check_heap(np.arange(math.prod(self.array.shape)))
        return self._file.asked(lambda: self._right(self.dataset[()]))

    def blocks(
        self, rows: NDArray[np.int64]
    ) -> Iterator[tuple[NDArray[np.int64], NDArray[np.int64], NDArray[Any] | str]]:
        """Read rows of elements of fixed length, each piece that holds some once, in file order.

        Args:
            rows: Rows, int64 [n], in any order.

        Yields:
            Places in `rows`, int64 [m]; the rows that stand there, numbered within the piece;
            and the piece, [k, ...], or why it cannot be had.
        """
        if self.offset is not None:
            piece: NDArray[Any] | str
            try:
                dtype = np.dtype(self.array.dtype)
                piece = mapped(self._file.shared, self.offset, dtype, self.array.shape)
            except DAMAGE as error:
                piece = str(error)
            yield np.arange(len(rows)), rows, piece
            return
        order = np.argsort(rows, kind="stable")
        numbers, starts = np.unique(rows[order] // self._height, return_index=True)
        for number, part in zip(numbers.tolist(), np.split(order, starts[1:]), strict=True):
            first = number * self._height
            last = min(first + self._height, self.array.shape[0])
            try:
                key = self._file.path, self._path, number
                block = self._file.chunks.get(key, partial(self._decoded, first, last))
            except DAMAGE as error:
                block = f"rows {first} to {last - 1} cannot be decoded ({error})"
            yield part, rows[part] - first, block

    def listed(self, rows: NDArray[np.int64]) -> list[Any]:
        """Read elements of any length: arrays, or the bytes of texts; `Damaged` where bad."""
        wanted, places = np.unique(rows, return_inverse=True)

        def read() -> NDArray[Any]:
            for number in np.unique(wanted // self._height).tolist():
                self._check_chunks(number * self._height, number * self._height + 1)
            self._check_heap(wanted)
            space = self.dataset.id.get_space()
            space.select_elements(wanted[:, None].astype(np.uint64))
            return self._right(self._selected(space, wanted.shape))

        values: Any
        try:
            values = self._file.asked(read)
        except DAMAGE as error:
            if len(wanted) == 1:
                return [Damaged(str(error))] * len(rows)
            values = [self.listed(wanted[n : n + 1])[0] for n in range(len(wanted))]
        return [values[place] for place in places.tolist()]

    def lengths(self) -> NDArray[np.int64]:
        """Find the bytes of each element of any length [n], by their places or by reading them."""
        rows = np.arange(self.array.shape[0])
        places = self._element_places(rows)
        if places is not None:
            return places["length"].astype(np.int64) * self.array.native.itemsize
        lengths = np.zeros(len(rows), np.int64)
        for first in range(0, len(rows), self._height):
            values = self.listed(rows[first : first + self._height])
            for value in values:
                if isinstance(value, Damaged):
                    raise value
            lengths[first : first + self._height] = list(map(len, values))
        return lengths * self.array.native.itemsize

    def _find_offset(self) -> int | None:
        """Find where in the file all elements lie as they are in memory; None: nowhere."""
        import h5py

        array, dataset = self.array, self.dataset.id
        if array.is_listed or dataset.get_create_plist().get_layout() != h5py.h5d.CONTIGUOUS:
            return None
        element = np.dtype((np.dtype(array.dtype), array.shape[dataset.rank :]))
        if array.kind == "number" and not h5py.h5t.py_create(element).equal(dataset.get_type()):
            return None
        offset: int | None = dataset.get_offset()
        return offset

    def _element_places(self, rows: NDArray[np.int64]) -> NDArray[Any] | None:
        """Find length and address of elements of any length, [n]; None where they are not plain.

        An element in the file is a length, the address of a collection in the heap, and the
        number of an object in it (HDF5 file format, section IV.A.2.d).
        """
        import h5py

        address_bytes = self._file.address_bytes
        layout = np.dtype({
            "names": ["length", "address"],
            "formats": ["<u4", f"<u{address_bytes}"],
            "offsets": [0, 4],
            "itemsize": 8 + address_bytes,
        })  # fmt: skip
        plist = self.dataset.id.get_create_plist()
        count = math.prod(self.array.shape)
        if plist.get_layout() == h5py.h5d.CONTIGUOUS:
            offset = self._file.asked(self.dataset.id.get_offset)
            if offset is None:
                return np.zeros(len(rows), layout)
            whole: NDArray[Any] = self._file.shared.view(offset, count * layout.itemsize)
            return whole.view(layout)[rows]
        is_filled = plist.fill_value_defined() == h5py.h5d.FILL_VALUE_USER_DEFINED
        if not self.dataset.chunks or plist.get_nfilters() or self.dataset.ndim > 1 or is_filled:
            return None
        found = np.zeros(len(rows), layout)
        for number in np.unique(rows // self._height).tolist():
            first = number * self._height
            _, raw = self._file.asked(partial(self.dataset.id.read_direct_chunk, (first,)))
            mine = rows // self._height == number
            found[mine] = np.frombuffer(raw, layout)[rows[mine] - first]
        return found

    def _check_heap(self, rows: NDArray[np.int64]) -> None:
        """Check the collections that hold elements; those without places were read once before.

        Raises:
            Damaged: The library would be lost in one.
        """
        places = self._element_places(rows)
        if places is None:
            return
        checked = self._file.checked
        for address in np.unique(places["address"][places["length"] > 0]).tolist():
            if address not in checked:
                check_collection(self._file.shared, self._file.file.userblock_size + address)
                checked.add(address)

    def _check_chunks(self, first: int, last: int) -> None:
        """Check the chunks of some rows, each once, before the library decompresses them.

        Raises:
            Damaged: One would take absurdly much memory.
        """
        suspects, is_large = self._suspects, self._chunk_bytes > self._file.max_bytes
        if not suspects and not is_large:
            return
        for start in range(first, last, self._height):
            if start in self._checked:
                continue
            infos = suspects.get(start, [])
            if is_large and not infos:  # never written: the library makes one all the same
                self._refuse(self._chunk_bytes, 0)
            for info in infos:
                self._refuse(self._chunk_bytes, info.size)
                # The library decompresses to the end of the stream, whatever a chunk holds.
                read = partial(self.dataset.id.read_direct_chunk, info.chunk_offset)
                place, code = self._stream or (0, None)
                if code is not None and not info.filter_mask >> place & 1:
                    if inflates_beyond(code, self._file.asked(read)[1], self._most_bytes):
                        raise Damaged(f"a chunk becomes more than its {self._chunk_bytes:,} bytes")
            self._checked.add(start)

    @cached_property
    def _suspects(self) -> dict[int, list[Any]]:
        """Chunks that may become more than a record may take, by their first row."""
        found: dict[int, list[Any]] = {}
        most = self._file.max_bytes
        is_large = self._chunk_bytes > most
        is_deflated = self._stream is not None and self._stream[1] == _DEFLATE
        harmless_bytes = most // MOST_EXPANDED if is_deflated else 0

        def look(info: Any) -> None:
            if is_large or info.size > harmless_bytes:
                found.setdefault(info.chunk_offset[0], []).append(info)

        # One after the other: to look for a single chunk takes the library as long as for all.
        dataset = self.dataset.id
        if is_large or (
            self._stream and self._file.asked(dataset.get_storage_size) > harmless_bytes
        ):
            self._file.asked(partial(dataset.chunk_iter, look))
        return found

    def _refuse(self, size_bytes: int, stored_bytes: int) -> None:
        if fault := inflated_too_large(size_bytes, stored_bytes, self._file.max_bytes):
            raise Damaged(fault)

    def _right(self, value: Any) -> Any:
        """Put lists right: h5py gives their items in the file's order of bytes, as if native."""
        if self.array.kind != "list":
            return value
        if self.array.shape and value.dtype.hasobject:
            for place in np.ndindex(value.shape):
                value[place] = self._right(value[place])
            return value
        return native(value.view(self.array.dtype))

    def _decoded(self, first: int, last: int) -> tuple[NDArray[Any], int]:
        def read() -> NDArray[Any]:
            counts = (last - first, *self._shape[1:])
            self._check_chunks(first, last)
            space = self.dataset.id.get_space()
            space.select_hyperslab((first, *(0 for _ in counts[1:])), counts)
            return self._selected(space, counts)

        block = self._file.asked(read)
        block.flags.writeable = False
        return block, block.nbytes

    def _selected(self, space: Any, counts: tuple[int, ...]) -> NDArray[Any]:
        """Read the elements that are selected: an ``h5py.Dataset`` takes several times as long."""
        import h5py

        if self._type is None:
            dtype = self.dataset.id.dtype if self.array.is_listed else self._in_memory
            self._type = h5py.h5t.py_create(dtype)
        out = np.empty(counts, self._in_memory)
        if out.size:
            self.dataset.id.read(h5py.h5s.create_simple(counts), space, out, self._type)
        return out


def mapped(
    file: SharedFile, offset: int, dtype: np.dtype[Any], shape: Sequence[int]
) -> NDArray[Any]:
    """Map numbers as they lie in a file, a read-only view."""
    return file.view(offset, math.prod(shape) * dtype.itemsize).view(dtype).reshape(shape)


def stream_of(dataset: Any) -> tuple[int, int] | None:
    """Find what compressed the chunks of a dataset last, checksums behind it or not.

    Returns:
        Its place among the filters, and its number (`_ANNOUNCED` and the like); None: nothing that
        is known to be a stream which may hold more than it should.
    """
    import h5py

    plist = dataset.id.get_create_plist()
    for place in reversed(range(plist.get_nfilters())):
        code, _, values, _ = plist.get_filter(place)
        if code == h5py.h5z.FILTER_FLETCHER32:
            continue
        is_plain = code == _BITSHUFFLE and not any(values[4:5])
        known = code in _ANNOUNCED or code in (_DEFLATE, _BZIP2, _LZF, _ZSTD)
        return (place, code) if known and not is_plain else None
    return None


def inflates_beyond(code: int, stream: bytes, size_bytes: int) -> bool:
    """Tell whether a chunk's stream holds more than so many bytes, without more memory than that.

    The library takes what the stream's header says, or goes on to the stream's end.
    """
    if code == _LZF:  # it has no header, holds 88 times its bytes at most, and is kept if smaller
        return len(stream) > size_bytes
    if code in (_DEFLATE, _BZIP2):
        reader = zlib.decompressobj() if code == _DEFLATE else bz2.BZ2Decompressor()
        with suppress(zlib.error, OSError, EOFError):  # the library says what is wrong
            return len(reader.decompress(stream, size_bytes + 1)) > size_bytes
        return False
    announced = 0
    if code == _ZSTD:
        announced = zstd_bytes(stream)
    elif len(stream) >= _ANNOUNCED[code].size:
        (announced,) = _ANNOUNCED[code].unpack_from(stream)
    return announced > size_bytes


def zstd_bytes(stream: bytes) -> int:
    """Find how much a Zstandard frame says to hold (RFC 8878, section 3.1.1.1); 0: it does not."""
    if len(stream) < 5 or stream[:4] != b"\x28\xb5\x2f\xfd":
        return 0
    size, single, dictionary = stream[4] >> 6, stream[4] >> 5 & 1, stream[4] & 3
    start = 6 - single + (0, 1, 2, 4)[dictionary]
    field = stream[start : start + (single, 2, 4, 8)[size]]
    return int.from_bytes(field, "little") + 256 * (size == 1)


def native(array: NDArray[Any]) -> NDArray[Any]:
    """Put an array in the machine's order of bytes and align it; the same one where it is that."""
    if array.dtype.kind in "SV":
        return array
    dtype = array.dtype.newbyteorder("=")
    return array if dtype == array.dtype and array.flags.aligned else array.astype(dtype)


def text_of(value: bytes) -> str | Damaged:
    """Decode a text that was read as bytes."""
    try:
        return value.rstrip(b"\0").decode()
    except UnicodeDecodeError:
        return Damaged("a text is not UTF-8")
