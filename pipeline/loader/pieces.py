"""Records of a batch in pieces, so that large ones are not all held at once."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

_PIECE_BYTES = 2 << 20


def pieces_of(dataset: Any, indices: NDArray[np.int64]) -> list[slice]:
    """Cut the records of a batch into runs of some 2 MB.

    A batch of photographs holds its pixels, and beside them no more encoded files than these: of
    128 photographs of 5 MB each, a worker would else hold 640 MB at a time.

    Args:
        dataset: Its ``held_bytes`` may say what memory each of them takes, once it is read; else
            all is one run.
        indices: int64 [n], which records.

    Returns:
        Runs in order that together are the batch; each has at least one record, and a single
        one may be larger.
    """
    whole = [slice(0, indices.size)]
    known = getattr(dataset, "held_bytes", None)
    sizes = known(indices) if known is not None else None
    if sizes is None:
        return whole
    ends = np.cumsum(sizes, dtype=np.int64)
    if not ends.size or ends[-1] <= _PIECE_BYTES:
        return whole
    # A record belongs to the piece in which its middle would lie if all were cut evenly.
    middles = ends - np.diff(ends, prepend=0) // 2
    cuts = np.flatnonzero(np.diff(middles // _PIECE_BYTES)) + 1
    bounds = [0, *cuts.tolist(), indices.size]
    return [slice(start, stop) for start, stop in pairwise(bounds)]
