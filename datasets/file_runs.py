"""Places in files that are read together, because they lie beside each other."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

# A gap costs less than another read; and what is read at once stays in the cache of the core.
_GAP_BYTES = 1 << 14
_RUN_BYTES = 1 << 22


class Run(NamedTuple):
    """Bytes of one file, and the places in them.

    Attributes:
        file: The file, by number.
        offset: Where the run begins.
        size_bytes: How long it is.
        parts: Of each place: its number in the request, start and stop within the run.
    """

    file: int
    offset: int
    size_bytes: int
    parts: list[tuple[int, int, int]]


def find_runs(files: NDArray[Any], offsets: NDArray[Any], sizes: NDArray[Any]) -> Iterator[Run]:
    """Sort places by where they lie, and put those together that are near each other.

    Args:
        files: The file of each place, integer [n].
        offsets: Where it begins, integer [n].
        sizes: Its length, integer [n].

    Yields:
        Runs, in the order of the files; every place is in one.
    """
    order = np.lexsort((offsets, files))
    file, offset, end = -1, 0, 0
    parts: list[tuple[int, int, int]] = []
    rows = (column[order].tolist() for column in (files, offsets, sizes))
    for n, next_file, start, size in zip(order.tolist(), *rows, strict=True):
        stop = start + size
        near = start - end <= _GAP_BYTES and stop - offset <= _RUN_BYTES
        if next_file != file or not near:
            if parts:
                yield Run(file, offset, end - offset, parts)
            file, offset, end, parts = next_file, start, start, []
        end = max(end, stop)
        parts.append((n, start - offset, stop - offset))
    if parts:
        yield Run(file, offset, end - offset, parts)
