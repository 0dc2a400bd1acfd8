"""Arrays in HDF5 files: what their elements are, and where their pieces lie."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from datasets.file_reader import MissingFile
from datasets.formats.hdf5_filters import DamagedChunk
from datasets.formats.hdf5_heap import ELEMENT
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


def native(array: NDArray[Any]) -> NDArray[Any]:
    """An array in the machine's order of bytes and aligned; the same one where it is that."""
    if array.dtype.names or array.dtype.kind in "SV":
        return array
    dtype = array.dtype.newbyteorder("=")
    if dtype == array.dtype and array.flags.aligned:
        return array
    return array.astype(dtype)


def fixed_columns(arrays: Sequence[Array]) -> bool:
    """Whether rows of these arrays can be put into one array."""
    first = arrays[0]
    return all(
        a.type.is_fixed and a.shape[1:] == first.shape[1:] and a.type.native == first.type.native
        for a in arrays
    )
