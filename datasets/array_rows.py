"""Rows of an array that may be mapped, gathered in one call."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray


def taken_rows(
    array: NDArray[Any], rows: NDArray[np.int64], allocate: Callable[[int], Any] | None
) -> NDArray[Any]:
    """The rows of an array, [n, ...].

    Args:
        array: [N, ...].
        rows: int64 [n], within 0 .. N - 1.
        allocate: Gives writable memory of so many bytes; None: NumPy's own.
    """
    out = None
    if allocate is not None:
        count = rows.size * array[:1].size
        memory = allocate(rows.size * array[:1].nbytes)
        out = np.frombuffer(memory, array.dtype, count).reshape(rows.size, *array.shape[1:])
    # With the default mode NumPy would take into a buffer and copy that.
    return np.take(array, rows, axis=0, out=out, mode="clip")
