"""Shuffle the records anew every epoch, in constant memory."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from penstock.core.contracts import Index, SamplerCapabilities
from penstock.core.registry import register
from penstock.core.rng import permute


@register("sampler", "random")
class RandomSampler:
    """Every record once, shuffled anew every epoch.

    A keyed permutation computes any position of any epoch directly, in constant memory, for 10^12
    records and more.
    """

    def __init__(self, n: int, index: Index | None = None, seed: int = 0) -> None:
        self._n = n
        self._seed = seed

    @property
    def capabilities(self) -> SamplerCapabilities:
        """Return random access to positions."""
        return SamplerCapabilities(at=self.at)

    def __len__(self) -> int:
        return self._n

    def indices(self, epoch: int, start: int, stop: int) -> NDArray[np.int64]:
        """Return the records at positions ``start .. stop - 1`` of `epoch`, int64."""
        return self.at(epoch, np.arange(start, stop, dtype=np.int64))

    def at(self, epoch: int, positions: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the records at any positions of `epoch`, int64 [n]."""
        return permute(positions, length=self._n, seed=self._seed, epoch=epoch)
