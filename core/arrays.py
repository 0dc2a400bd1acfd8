"""Arrays of numbers: `.npy` files (NumPy's NEP 1, never unpickled), field names and rows."""

from __future__ import annotations

import contextlib
import functools
import io
import math
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import IO, Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from penstock.core.user_errors import is_trouble

_T = TypeVar("_T")
_TRIES = 20
# The maximum header that NumPy reads, and the bytes before it.
_HEADER_BYTES = 10_012
_FIELDS = {"images": "image", "labels": "label", "masks": "mask", "keys": "key"}
_RESERVED = ("index", "key", "position", "epoch", "valid")
_FIELD = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


def read_npy(data: bytes) -> NDArray[Any]:
    """Return the array in a `.npy` file's bytes as a writable copy; errors as for `view_npy`."""
    array = view_npy(data)
    return array.copy("F" if array.flags.f_contiguous and not array.flags.c_contiguous else "C")


def view_npy(data: bytes) -> NDArray[Any]:
    """Return the array in a `.npy` file's bytes, as a view.

    Raises:
        ValueError: The file is damaged, or has Python objects.
    """
    # A header ends in a line feed; the ten bytes before the header may contain one too.
    end = data.find(b"\n", 10, _HEADER_BYTES) + 1
    try:
        shape, fortran, dtype = _header(data[:end])
    except Exception as error:  # of any type, from Python's own parser
        if is_trouble(error):
            raise
        said = " ".join(str(error).split())
        raise ValueError(f"is no .npy file, or a damaged one ({said})") from None
    if dtype.hasobject:
        raise ValueError("holds Python objects (pickled), which are never loaded")
    # Compare before allocating: a damaged header may have any shape.
    wanted, found = math.prod(shape) * dtype.itemsize, len(data) - end
    if found != wanted:
        raise ValueError(f"has {found:,} bytes of {dtype} {list(shape)}, expected {wanted:,}")
    content = memoryview(data)[end:]
    order: Any = "F" if fortran else "C"
    return np.ndarray(shape, dtype, content, order=order)


def map_npy(path: str | Path) -> NDArray[Any]:
    """Return the array in a `.npy` file memory-mapped, read-only; errors as for `view_npy`."""
    return _parsed(lambda: np.load(path, mmap_mode="r", allow_pickle=False))


def _parsed(parse: Callable[[], _T]) -> _T:
    """Call `parse`, and retry spurious failures of CPython's parser, which reads the headers.

    Before 3.11.8 it sometimes fails while several threads parse (CPython issue 106905).
    """
    for _ in range(_TRIES):
        with contextlib.suppress(SystemError):
            return parse()
    return parse()


@functools.lru_cache(maxsize=128)
def _header(head: bytes) -> tuple[tuple[int, ...], bool, np.dtype[Any]]:
    """Parse a header, cached: many files have equal headers, and NumPy takes 15 us for each."""
    file = io.BytesIO(head)
    found = read_npy_header(file)
    if file.tell() != len(head):
        raise ValueError("its header ends elsewhere")
    return found


def read_npy_header(file: IO[bytes]) -> tuple[tuple[int, ...], bool, np.dtype[Any]]:
    """Return shape, Fortran order and dtype; move `file` from its start to the array."""
    version = np.lib.format.read_magic(file)
    if version not in ((1, 0), (2, 0)):
        raise ValueError(f"format version {version[0]}.{version[1]}")
    start = file.tell()

    def parse() -> tuple[tuple[int, ...], bool, np.dtype[Any]]:
        file.seek(start)
        try:
            if version == (1, 0):
                return np.lib.format.read_array_header_1_0(file)
            return np.lib.format.read_array_header_2_0(file)
        except (MemoryError, RecursionError):  # of Python's parser; headers are at most 10 kB
            raise ValueError("its header is nested too deep") from None

    found = _parsed(parse)
    if any(length < 0 for length in found[0]):
        raise ValueError(f"shape {found[0]}, expected lengths from 0 on")
    return found


def write_npy(array: NDArray[Any]) -> bytes:
    """Return the bytes of a `.npy` file for an array without Python objects."""
    file = io.BytesIO()
    np.lib.format.write_array(file, np.asarray(array, order="C"), allow_pickle=False)
    return file.getvalue()


def look_at_header(
    file: IO[bytes],
    size_bytes: int,
    where: str,
    *,
    remedy: str = "copy it again",
    kinds: str = "biufc",
    rows: bool = True,
) -> tuple[tuple[int, ...], str, int]:
    """Return shape, dtype and array offset of a `.npy` file (NumPy's NEP 1), without unpickling.

    Args:
        file: At the file's start; moves to the array.
        size_bytes: Size of the whole file.
        where: Name of the file in messages.
        remedy: Alternative to rewriting a damaged file with NumPy, for messages.
        kinds: Accepted kinds of dtypes, as NumPy names them.
        rows: Require an axis of samples, and contiguous samples.

    Raises:
        ValueError: The file is damaged, cut short, or cannot be mapped.
    """
    try:
        shape, fortran, dtype = read_npy_header(file)
    except Exception as error:  # of any type, from Python's own parser
        if is_trouble(error):
            raise
        raise ValueError(
            f"{where} is no .npy file, or a damaged one ({' '.join(str(error).split())}); write it "
            f"with np.save, or {remedy}"
        ) from None
    offset = file.tell()
    if dtype.hasobject:
        raise ValueError(
            f"{where} holds Python objects (pickled), which are never loaded; save one "
            f"array of numbers per field"
        )
    if dtype.kind not in kinds or (dtype.kind == "u" and dtype.itemsize == 8 and len(shape) == 1):
        raise ValueError(
            f"{where} holds {dtype}, expected numbers that a tensor can hold; save it "
            f"with another type, such as int64"
        )
    if rows and not shape:
        raise ValueError(f"{where} holds one number, expected an axis of samples first")
    if fortran and len(shape) > 1:
        raise ValueError(
            f"{where} is in Fortran order, in which a sample is scattered over the file; "
            f"save np.ascontiguousarray(array)"
        )
    missing = offset + math.prod(shape) * dtype.itemsize - size_bytes
    if missing > 0:
        raise ValueError(
            f"{where} is cut short: {missing:,} bytes of {dtype} {list(shape)} are "
            f"missing; copy it again"
        )
    return shape, dtype.str, offset


def field_name(stem: str) -> str:
    """Return the field of a file or array, whose name may be a plural such as ``images``."""
    return _FIELDS.get(stem, stem)


def check_field(field: str, named: str, *, where: str, taken: Sequence[str] = ()) -> None:
    """Raise ValueError if `field` is not a valid field name.

    `named` is the source of the name, for messages. `taken` are reserved names that the storage
    handles itself.
    """
    reserved = [name for name in _RESERVED if name not in taken]
    if field in reserved or not _FIELD.fullmatch(field):
        raise ValueError(
            f"{where}: {named} would be a field {field!r}, expected a name of "
            f"letters, digits and _ that is none of {', '.join(reserved)}; rename it"
        )


def field_place(field: str) -> tuple[int, str]:
    """Return the sort key of a field: ``image``, ``label``, then by name."""
    order = ("image", "label")
    return (order.index(field) if field in order else len(order)), field


def same_count(counts: Mapping[str, int], *, where: str) -> int:
    """Return the common number of rows of all fields; raise ValueError if they differ."""
    first = next(iter(counts))
    for field, count in counts.items():
        if count != counts[first]:
            raise ValueError(
                f"{where}: {first} has {counts[first]:,} rows and {field} has {count:,}, "
                f"expected the same number"
            )
    return counts[first]
