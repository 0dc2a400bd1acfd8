"""Arrays of numbers: `.npy` files (NumPy's NEP 1, never unpickled), field names and rows."""

from __future__ import annotations

import functools
import io
import math
import re
from collections.abc import Sequence
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from penstock.core.user_errors import is_trouble

Header = tuple[tuple[int, ...], bool, np.dtype[Any]]
"""Shape, Fortran order and dtype."""
_TRIES = 20
# The maximum header that NumPy reads, and the bytes before it.
_HEADER_BYTES = 10_012
_FIELDS = {"images": "image", "labels": "label", "masks": "mask", "keys": "key"}
RESERVED = ("index", "key", "position", "epoch", "valid")
_FIELD = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


def read_npy(data: bytes) -> NDArray[Any]:
    """Return the array in a `.npy` file's bytes as a writable copy; errors as for `view_npy`."""
    return view_npy(data).copy("K")


def view_npy(data: bytes) -> NDArray[Any]:
    """Return the array in a `.npy` file's bytes, as a view.

    Raises:
        ValueError: The file is damaged, or has Python objects.
    """
    # A header ends in a line feed; the ten bytes before the header may contain one too.
    end = data.find(b"\n", 10, _HEADER_BYTES) + 1
    shape, fortran, dtype = _header(data[:end])
    # Compare before allocating: a damaged header may have any shape.
    wanted, found = math.prod(shape) * dtype.itemsize, len(data) - end
    if found != wanted:
        raise ValueError(f"has {found:,} bytes of {dtype} {list(shape)}, expected {wanted:,}")
    order: Any = "F" if fortran else "C"
    return np.ndarray(shape, dtype, memoryview(data)[end:], order=order)


def map_npy(path: str | Path) -> NDArray[Any]:
    """Return the array in a `.npy` file memory-mapped, read-only; errors as for `view_npy`."""
    with open(path, "rb") as file:
        shape, fortran, dtype = read_npy_header(file)
        return np.memmap(file, dtype, "r", file.tell(), shape, "F" if fortran else "C")


@functools.lru_cache(maxsize=128)
def _header(head: bytes) -> Header:
    """Parse a header, cached: many files have equal headers, and NumPy takes 15 us for each."""
    file = io.BytesIO(head)
    found = read_npy_header(file)
    if file.tell() != len(head):
        raise ValueError("is no .npy file, or a damaged one (its header ends elsewhere)")
    return found


def read_npy_header(file: IO[bytes]) -> Header:
    """Return shape, Fortran order and dtype; move `file` from its start to the array.

    ValueError for damage and for Python objects. CPython's parser, which reads the headers, fails
    sometimes before 3.11.8 while several threads parse (issue 106905), so try again.
    """
    start = file.tell()
    for _ in range(_TRIES):
        file.seek(start)
        try:
            version = np.lib.format.read_magic(file)
            if version not in ((1, 0), (2, 0)):
                raise ValueError(f"format version {version[0]}.{version[1]}")
            read = np.lib.format.read_array_header_1_0
            found = (read if version == (1, 0) else np.lib.format.read_array_header_2_0)(file)
        except SystemError:
            continue
        except (MemoryError, RecursionError):  # of Python's parser; headers are at most 10 kB
            raise ValueError("is a damaged .npy file (its header is nested too deep)") from None
        except Exception as error:  # of any type, from Python's own parser
            if is_trouble(error):
                raise
            said = " ".join(str(error).split())
            raise ValueError(f"is no .npy file, or a damaged one ({said})") from None
        if found[2].hasobject:
            raise ValueError("holds Python objects (pickled), which are refused; save numbers")
        if any(length < 0 for length in found[0]):
            raise ValueError(f"is a damaged .npy file (shape {found[0]})")
        return found
    raise SystemError("NumPy cannot parse .npy headers while other threads parse")


def save_npy(path: Path, parts: Sequence[NDArray[Any]]) -> None:
    """Write arrays as one `.npy` file, joined along the first axis.

    A full disk raises an OSError with its number; `numpy.save` drops the number, and writing to a
    mapped file ends the process (SIGBUS).
    """
    dtype, shape = np.result_type(*parts), (sum(map(len, parts)), *parts[0].shape[1:])
    descr = np.lib.format.dtype_to_descr(dtype)
    header = {"descr": descr, "fortran_order": False, "shape": shape}
    with open(path, "wb") as file:
        np.lib.format.write_array_header_1_0(file, header)
        for part in parts:
            file.write(np.ascontiguousarray(part, dtype).reshape(-1).view(np.uint8).data)


def write_npy(array: NDArray[Any]) -> bytes:
    """Return the bytes of a `.npy` file for an array without Python objects."""
    file = io.BytesIO()
    np.lib.format.write_array(file, np.asarray(array, order="C"), allow_pickle=False)
    return file.getvalue()


def look_at_header(
    file: IO[bytes], size_bytes: int, where: str
) -> tuple[tuple[int, ...], str, int]:
    """Return shape, dtype and array offset of a `.npy` file with an axis of contiguous samples.

    ValueError if the file, `where` in messages, is damaged, cut short, or cannot be mapped.
    """
    try:
        shape, fortran, dtype = read_npy_header(file)
    except ValueError as error:
        raise ValueError(f"{where} {error}; write it with np.save, or copy it again") from None
    offset = file.tell()
    too_large = dtype.kind == "u" and dtype.itemsize == 8 and len(shape) == 1
    scattered = fortran and len(shape) > 1
    if not shape or dtype.kind not in "biufcSU" or too_large or scattered:
        raise ValueError(
            f"{where} holds {dtype} {list(shape)}{' in Fortran order' * scattered}, expected rows "
            f"of numbers that a tensor can hold; save np.ascontiguousarray(array), or another type"
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
    reserved = [name for name in RESERVED if name not in taken]
    if field in reserved or not _FIELD.fullmatch(field):
        raise ValueError(
            f"{where}: {named} would be a field {field!r}, expected a name of "
            f"letters, digits and _ that is none of {', '.join(reserved)}; rename it"
        )


def field_place(field: str) -> tuple[int, str]:
    """Return the sort key of a field: ``image``, ``label``, then by name."""
    order = ("image", "label")
    return (order.index(field) if field in order else len(order)), field
