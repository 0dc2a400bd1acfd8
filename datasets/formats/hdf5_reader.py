"""Reads arrays in HDF5 files from the places of their pieces, without the library."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from itertools import groupby
from typing import Any

import numpy as np
from numpy.typing import NDArray

from datasets.formats.hdf5_arrays import DAMAGE, Array, OpenedFile, Places, native
from datasets.formats.hdf5_filters import DamagedChunk, decode_chunk
from datasets.formats.hdf5_heap import read_collection, read_heap
from datasets.group_cache import GroupCache

_MOST_PLANS = 1024
_SEVERAL = 4  # values of one collection for which it is read whole


class ArrayReader:
    """Reads arrays; rows of one chunk in one go, and chunks used last are kept.

    Args:
        places: Where their pieces lie.
        cache_bytes: How much is kept of decoded chunks.
    """

    def __init__(self, places: Places, cache_bytes: int) -> None:
        self._places = places
        self._blocks = GroupCache(cache_bytes)
        self._plans: dict[int, _ChunkPlan] = {}

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
        plan = self._plan(array)
        order = np.argsort(rows, kind="stable")
        numbers, starts = np.unique(rows[order] // plan.height, return_index=True)
        for number, part in zip(numbers.tolist(), np.split(order, starts[1:]), strict=True):
            block: NDArray[Any] | str
            try:
                if plan.in_place:
                    block = self._chunk_in_place(opened, array, plan, number)
                else:
                    load = partial(self._sized, opened, array, number)
                    block = self._blocks.get((array.first, number), load)
            except DAMAGE as error:
                first = number * plan.height
                block = f"{error} (rows {first} to {first + plan.height - 1})"
            yield part, rows[part] - number * plan.height, block

    def values(
        self, opened: OpenedFile, array: Array, elements: NDArray[Any], *, raw: bool = False
    ) -> list[Any]:
        """Elements that are no numbers, [n], as text or bytes; `raw`: text as its bytes too.

        Lists are the bytes of their items; one that is damaged is a `DamagedChunk`.
        """
        kind = array.type.kind
        if kind == "text":
            return [_text(value, raw) for value in elements.tolist()]
        if kind == "bytes":
            return [value.tobytes() for value in elements]
        item_bytes = np.dtype(array.type.dtype).itemsize
        listed = elements.tolist()
        found: list[Any] = [b""] * len(listed)
        # One collection after the other, and whole where it holds several of them.
        order = sorted(range(len(listed)), key=lambda row: listed[row][1])
        for address, rows in groupby(order, key=lambda row: listed[row][1]):
            several = list(rows)
            for row, value in self._of_collection(opened, address, several, listed, item_bytes):
                is_text = kind == "long_text" and not isinstance(value, DamagedChunk)
                found[row] = _text(value, raw) if is_text else value
        return found

    @staticmethod
    def _of_collection(
        opened: OpenedFile, address: int, rows: list[int], listed: list[Any], item_bytes: int
    ) -> Iterator[tuple[int, Any]]:
        """The rows' values, all of one collection of the heap, or a `DamagedChunk`."""
        file, start, size = opened.file, opened.base + address, opened.size_bytes
        objects: dict[int, bytes] = {}
        if len(rows) >= _SEVERAL:
            with suppress(*DAMAGE):  # each by itself, then, and said of each
                objects = read_collection(file, start, file_bytes=size)
        for row in rows:
            length, _, number = listed[row]
            value = objects.get(number, b"")
            if length and len(value) < length * item_bytes:
                try:
                    yield (
                        row,
                        read_heap(file, opened.base, listed[row], item_bytes, file_bytes=size),
                    )
                except DAMAGE as error:
                    yield row, DamagedChunk(str(error))
                continue
            yield row, value[: length * item_bytes]

    def _mapped(self, opened: OpenedFile, array: Array) -> NDArray[Any]:
        """An array in one piece, as a view of the file."""
        dtype = array.type.element
        size_bytes = math.prod(array.shape) * dtype.itemsize
        if not size_bytes:
            return np.empty(array.shape, dtype)
        pixels = opened.file.view(int(self._places.offset[array.first]), size_bytes)
        return pixels.view(dtype).reshape(array.shape)

    def _chunk_in_place(
        self, opened: OpenedFile, array: Array, plan: _ChunkPlan, number: int
    ) -> NDArray[Any]:
        """A chunk that is stored as it is, as a view of the file."""
        offset = int(self._places.offset[array.first + number])
        pixels = opened.file.view(offset, plan.chunk_bytes)
        return pixels.view(plan.dtype).reshape(plan.chunks)

    def _sized(self, opened: OpenedFile, array: Array, number: int) -> tuple[NDArray[Any], int]:
        block = self._load(opened, array, number)
        return block, block.nbytes

    def _load(self, opened: OpenedFile, array: Array, number: int) -> NDArray[Any]:
        """The rows of one row of chunks, [k, *shape[1:]], in the machine's order of bytes."""
        plan = self._plan(array)
        first = array.first + number * plan.count
        height = min(plan.height, array.shape[0] - number * plan.height)
        block: NDArray[Any]
        if plan.whole_rows:
            block = self._chunk(opened, array, plan, first)[:height]
        else:
            block = np.empty((height, *array.shape[1:]), plan.dtype)
            for place in range(plan.count):
                chunk = self._chunk(opened, array, plan, first + place)
                corner = np.unravel_index(place, plan.grid)
                inside = tuple(
                    slice(int(at) * size, (int(at) + 1) * size)
                    for at, size in zip(corner, plan.chunks[1:], strict=True)
                )
                target = block[(slice(None), *inside)]
                target[...] = chunk[tuple(slice(length) for length in target.shape)]
        block = native(block)
        block.flags.writeable = False
        return block

    def _chunk(self, opened: OpenedFile, array: Array, plan: _ChunkPlan, at: int) -> NDArray[Any]:
        """The chunk at a place, [*chunks]."""
        places = self._places
        stored = opened.file.read(int(places.offset[at]), int(places.size_bytes[at]))
        data = decode_chunk(stored, array.type.filters, int(places.mask[at]), plan.chunk_bytes)
        return np.frombuffer(data, plan.dtype).reshape(plan.chunks)

    def _plan(self, array: Array) -> _ChunkPlan:
        plan = self._plans.get(array.first)
        if plan is None:
            plan = _ChunkPlan.of(array)
            if len(self._plans) < _MOST_PLANS:
                self._plans[array.first] = plan
        return plan


@dataclass(frozen=True, slots=True)
class _ChunkPlan:
    """What is alike for all chunks of an array.

    Attributes:
        dtype: Type of an element in the file.
        chunks: Shape of a chunk.
        chunk_bytes: Its size.
        grid: Number of chunks along every axis but the first.
        count: How many chunks make whole rows.
        whole_rows: One does.
        in_place: And it is stored as it is.
    """

    dtype: np.dtype[Any]
    chunks: tuple[int, ...]
    chunk_bytes: int
    grid: tuple[int, ...]
    count: int
    whole_rows: bool
    in_place: bool

    @property
    def height(self) -> int:
        """Rows of a chunk."""
        return self.chunks[0]

    @classmethod
    def of(cls, array: Array) -> _ChunkPlan:
        """The plan of a chunked array."""
        dtype, chunks = array.type.element, array.chunks
        assert chunks is not None
        lengths = zip(array.shape[1:], chunks[1:], strict=True)
        grid = tuple(-(-length // chunk) for length, chunk in lengths)
        whole_rows = chunks[1:] == array.shape[1:]
        return cls(
            dtype,
            chunks,
            math.prod(chunks) * dtype.itemsize,
            grid,
            math.prod(grid),
            whole_rows,
            whole_rows and not array.type.filters,
        )


def _text(value: bytes, raw: bool) -> str | bytes | DamagedChunk:
    value = value.rstrip(b"\0")
    try:
        return value if raw else value.decode()
    except UnicodeDecodeError:
        return DamagedChunk("a text is not UTF-8")
