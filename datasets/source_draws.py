"""The order of one source of a mix."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray


class SourceDraws:
    """A sampler as one source of a mix has to see it: with records of that source alone.

    Args:
        sampler: The mix's.
        number: The source's number.
        size: How many records the source has.
    """

    def __init__(self, sampler: Any, number: int, size: int) -> None:
        self._sampler = sampler
        self._number = number
        self._size = size

    def __len__(self) -> int:
        return len(self._sampler)

    def indices(self, epoch: int, start: int, stop: int) -> NDArray[np.int64]:
        """Records of the source at positions ``start .. stop - 1``, int64 [stop - start]."""
        return self.at(epoch, np.arange(start, stop, dtype=np.int64))

    def at(self, epoch: int, positions: NDArray[np.int64]) -> NDArray[np.int64]:
        """Records of the source at any positions, int64 [n]."""
        of_source = getattr(self._sampler, "of_source", None)
        if of_source is None:  # all records in order: as good as any of the source's own
            return positions % self._size
        records: NDArray[np.int64] = of_source(self._number, epoch, positions)
        return records
