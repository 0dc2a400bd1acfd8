"""Shuffle the records anew every epoch, in constant memory."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from penstock.core.contracts import DirectSampler
from penstock.core.registry import register
from penstock.core.rng import permute


@register("sampler", "random")
class RandomSampler(DirectSampler):
    """Every record once, shuffled anew every epoch.

    A keyed permutation computes any position of any epoch directly, in constant memory.
    """

    def __init__(self, n: int, seed: int = 0) -> None:
        self._n, self._seed = n, seed

    def __len__(self) -> int:
        return self._n

    def at(self, epoch: int, positions: NDArray[np.int64]) -> NDArray[np.int64]:
        return permute(positions, length=self._n, seed=self._seed, epoch=epoch)
