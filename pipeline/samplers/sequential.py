"""Draw the records in the order of the index."""

from __future__ import annotations

from typing import Annotated

import numpy as np
from annotated_types import Ge
from numpy.typing import NDArray

from penstock.core.contracts import Sampler
from penstock.core.registry import register


@register("sampler", "sequential")
class SequentialSampler(Sampler):
    """Every record once, in the order of the index, or an evenly spread subset.

    Args:
        count: Records to take, evenly spread over the index; null: all.
    """

    def __init__(self, n: int, *, count: Annotated[int, Ge(0)] | None = None) -> None:
        self._n, self._count = n, n if count is None else min(count, n)

    def __len__(self) -> int:
        return self._count

    def indices(self, epoch: int, start: int, stop: int) -> NDArray[np.int64]:
        positions = np.arange(start, stop, dtype=np.int64)
        return positions if self._count == self._n else positions * self._n // self._count


@register("sampler", "inference")
def make_inference_sampler(n: int) -> SequentialSampler:
    """Alias of ``sequential``."""
    return SequentialSampler(n)
