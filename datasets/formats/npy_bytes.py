"""An array as the bytes of a `.npy` file (NumPy's NEP 1). Nothing is pickled or unpickled."""

from __future__ import annotations

import functools
import io
import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

# What NumPy reads of a header at most, and what stands before it.
_HEADER_BYTES = 10_012


def read_npy(data: bytes) -> NDArray[Any]:
    """The array in a `.npy` file's bytes, as a copy that may be written to.

    Raises:
        ValueError: It is damaged, or holds Python objects.
    """
    array = view_npy(data)
    return array.copy("F" if array.flags.f_contiguous and not array.flags.c_contiguous else "C")


def view_npy(data: bytes) -> NDArray[Any]:
    """The array in a `.npy` file's bytes, in their memory.

    Raises:
        ValueError: It is damaged, or holds Python objects.
    """
    # A header ends in a line feed; before it stand ten bytes that may hold one too.
    end = data.find(b"\n", 10, _HEADER_BYTES) + 1
    try:
        shape, fortran, dtype = _header(data[:end])
    except Exception as error:  # of many kinds: NumPy lets Python's own parser read it
        said = " ".join(str(error).split())
        raise ValueError(f"is no .npy file, or a damaged one ({said})") from None
    if dtype.hasobject:
        raise ValueError("holds Python objects (pickled), which are never loaded")
    # Compared before anything is allocated: a damaged header may say any shape.
    wanted, found = math.prod(shape) * dtype.itemsize, len(data) - end
    if any(length < 0 for length in shape) or found != wanted:
        raise ValueError(f"has {found:,} bytes of {dtype} {list(shape)}, expected {wanted:,}")
    content = memoryview(data)[end:]
    order: Any = "F" if fortran else "C"
    return np.ndarray(shape, dtype, content, order=order)


@functools.lru_cache(maxsize=128)
def _header(head: bytes) -> tuple[tuple[int, ...], bool, np.dtype[Any]]:
    """Shape, order and type; kept, since many files begin alike and NumPy takes 15 us for each."""
    file = io.BytesIO(head)
    version = np.lib.format.read_magic(file)
    read_header = {
        (1, 0): np.lib.format.read_array_header_1_0,
        (2, 0): np.lib.format.read_array_header_2_0,
    }[version]
    found = read_header(file)
    if file.tell() != len(head):
        raise ValueError("its header ends elsewhere")
    return found


def write_npy(array: NDArray[Any]) -> bytes:
    """The bytes of a `.npy` file that holds `array`, which has no Python objects."""
    file = io.BytesIO()
    np.lib.format.write_array(file, np.asarray(array, order="C"), allow_pickle=False)
    return file.getvalue()
