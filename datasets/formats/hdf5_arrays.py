"""Arrays in HDF5 files, read from the places of their chunks without the library."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from datasets.file_reader import MissingFile
from datasets.formats.hdf5_filters import DamagedChunk, decode_chunk
from datasets.formats.hdf5_heap import ELEMENT, read_heap
from datasets.group_cache import GroupCache
from datasets.shared_file import EndOfFile, SharedFile

DAMAGE = (DamagedChunk, EndOfFile, MissingFile)
"""What reading raises where the data is not what was written."""


@dataclass(frozen=True, slots=True)
class ArrayType:
    """What the elements of an array are.

    Attributes:
        kind: ``number``, ``text`` or ``bytes`` (of a fixed length), ``list`` or ``long_text``
            (of any length, in the file's heap).
        dtype: NumPy's type of an element, or of the items of a list, as it is in the file.
        filters: Code and parameters of the filters of a chunk.
    """

    kind: str
    dtype: str
    filters: tuple[tuple[int, tuple[int, ...]], ...]

    @property
    def element(self) -> np.dtype[Any]:
        """Type of an element in the file."""
        return np.dtype(ELEMENT if self.kind in ("list", "long_text") else self.dtype)

    @property
    def native(self) -> np.dtype[Any]:
        """Type of a number in the machine's order of bytes."""
        return np.dtype(self.dtype).newbyteorder("=")

    @property
    def is_fixed(self) -> bool:
        """Whether elements are numbers that lie in the array itself."""
        return self.kind == "number"


@dataclass(frozen=True, slots=True)
class Array:
    """An array and where its bytes are.

    Attributes:
        type: Of its elements.
        shape: Its shape.
        chunks: Shape of a chunk; None: it lies in one piece.
        first: Its first place among those of all arrays; chunks follow in row-major order.
    """

    type: ArrayType
    shape: tuple[int, ...]
    chunks: tuple[int, ...] | None
    first: int

    @property
    def row_bytes(self) -> int:
        """Size of a row, of a sample where the first axis is that of samples."""
        return math.prod(self.shape[1:]) * self.type.element.itemsize


@dataclass(frozen=True, slots=True)
class Places:
    """Where the pieces of all arrays lie, [n] each.

    Attributes:
        offset: In the file, int64.
        size_bytes: As stored, int64.
        mask: Filters that were left out, by bit.
    """

    offset: NDArray[np.int64]
    size_bytes: NDArray[np.int64]
    mask: NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class OpenedFile:
    """A file that arrays lie in.

    Attributes:
        file: The file.
        size_bytes: Its size.
        base: Bytes before the address 0.
    """

    file: SharedFile
    size_bytes: int
    base: int


class ArrayReader:
    """Reads arrays; rows of one chunk in one go, and chunks used last are kept.

    Args:
        places: Where their pieces lie.
        cache_bytes: How much is kept of decoded chunks.
    """

    def __init__(self, places: Places, cache_bytes: int) -> None:
        self._places = places
        self._blocks = GroupCache(cache_bytes)

    def whole(self, opened: OpenedFile, array: Array) -> NDArray[Any]:
        """All of an array, [*shape], in the machine's order of bytes; maybe read-only.

        Raises:
            DamagedChunk: It is damaged.
        """
        if array.chunks is None:
            return native(self._mapped(opened, array))
        if not array.shape:
            raise DamagedChunk("an array without axes has chunks")
        if not array.shape[0]:
            return np.empty(array.shape, array.type.element)
        count = -(-array.shape[0] // array.chunks[0])
        blocks = [self._load(opened, array, number) for number in range(count)]
        return native(blocks[0] if count == 1 else np.concatenate(blocks))

    def blocks(
        self, opened: OpenedFile, array: Array, rows: NDArray[np.int64]
    ) -> Iterator[tuple[NDArray[np.int64], NDArray[np.int64], NDArray[Any] | str]]:
        """Rows of an array, each piece of it that holds some once, in file order.

        Args:
            opened: Its file.
            array: The array.
            rows: Rows, int64 [n], in any order.

        Yields:
            Places in `rows`, int64 [m]; the rows that stand there, numbered within the piece;
            and the piece, [k, ...], or why it cannot be had.
        """
        if array.chunks is None:
            piece: NDArray[Any] | str
            try:
                piece = self._mapped(opened, array)
            except DAMAGE as error:
                piece = str(error)
            yield np.arange(len(rows)), rows, piece
            return
        height = array.chunks[0]
        order = np.argsort(rows, kind="stable")
        numbers = rows[order] // height
        cuts = np.flatnonzero(np.diff(numbers)) + 1
        for part in np.split(np.arange(len(rows)), cuts) if len(rows) else ():
            number = int(numbers[part[0]])
            try:
                block: NDArray[Any] | str = self._blocks.get(
                    (array.first, number),
                    lambda number=number: _sized(self._load(opened, array, number)),  # type: ignore[misc]
                )
            except DAMAGE as error:
                block = f"{error} (rows {number * height} to {(number + 1) * height - 1})"
            yield order[part], rows[order[part]] - number * height, block

    def values(self, opened: OpenedFile, array: Array, elements: NDArray[Any]) -> list[Any]:
        """Elements that are no numbers, [n], as text or bytes.

        Lists are the bytes of their items; one that is damaged is a `DamagedChunk`.
        """
        kind = array.type.kind
        if kind == "text":
            return [_text(value) for value in elements.tolist()]
        if kind == "bytes":
            return [value.tobytes() for value in elements]
        dtype = np.dtype(array.type.dtype)
        found: list[Any] = []
        for element in elements.tolist():
            try:
                value = read_heap(
                    opened.file,
                    opened.base,
                    element,
                    dtype.itemsize,
                    file_bytes=opened.size_bytes,
                )
            except DAMAGE as error:
                found.append(DamagedChunk(str(error)))
                continue
            found.append(_text(value) if kind == "long_text" else value)
        return found

    def _mapped(self, opened: OpenedFile, array: Array) -> NDArray[Any]:
        """An array in one piece, as a view of the file."""
        dtype = array.type.element
        size_bytes = math.prod(array.shape) * dtype.itemsize
        if not size_bytes:
            return np.empty(array.shape, dtype)
        pixels = opened.file.view(int(self._places.offset[array.first]), size_bytes)
        return pixels.view(dtype).reshape(array.shape)

    def _load(self, opened: OpenedFile, array: Array, number: int) -> NDArray[Any]:
        """The rows of one row of chunks, [k, *shape[1:]], in the machine's order of bytes."""
        assert array.chunks is not None
        dtype, chunks = array.type.element, array.chunks
        chunk_bytes = math.prod(chunks) * dtype.itemsize
        grid = [-(-length // chunk) for length, chunk in zip(array.shape, chunks, strict=True)]
        count = math.prod(grid[1:])
        start = array.first + number * count
        height = min(chunks[0], array.shape[0] - number * chunks[0])
        block: NDArray[Any] | None = None
        for place in range(count):
            at = start + place
            stored = opened.file.read(
                int(self._places.offset[at]), int(self._places.size_bytes[at])
            )
            mask = int(self._places.mask[at])
            data = decode_chunk(stored, array.type.filters, mask, chunk_bytes)
            chunk = np.frombuffer(data, dtype).reshape(chunks)
            if count == 1 and chunks[1:] == array.shape[1:]:
                block = chunk[:height]
                break
            if block is None:
                block = np.empty((height, *array.shape[1:]), dtype)
            corner = np.unravel_index(place, grid[1:])
            starts = [int(c) * chunk for c, chunk in zip(corner, chunks[1:], strict=True)]
            inside = tuple(slice(s, s + size) for s, size in zip(starts, chunks[1:], strict=True))
            target = block[(slice(None), *inside)]
            target[...] = chunk[tuple(slice(length) for length in target.shape)]
        assert block is not None
        block = native(block)
        block.flags.writeable = False
        return block


def _sized(block: NDArray[Any]) -> tuple[NDArray[Any], int]:
    return block, block.nbytes


def native(array: NDArray[Any]) -> NDArray[Any]:
    """An array in the machine's order of bytes and aligned; the same one where it is that."""
    if array.dtype.names or array.dtype.kind in "SV":
        return array
    dtype = array.dtype.newbyteorder("=")
    if dtype == array.dtype and array.flags.aligned:
        return array
    return array.astype(dtype)


def _text(value: bytes) -> str | DamagedChunk:
    try:
        return value.rstrip(b"\0").decode()
    except UnicodeDecodeError:
        return DamagedChunk("a text is not UTF-8")


def fixed_columns(arrays: Sequence[Array]) -> bool:
    """Whether rows of these arrays can be put into one array."""
    first = arrays[0]
    return all(
        a.type.is_fixed and a.shape[1:] == first.shape[1:] and a.type.native == first.type.native
        for a in arrays
    )
