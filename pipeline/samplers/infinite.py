"""Shuffle records endlessly, for training that counts iterations."""

from __future__ import annotations

from typing import Annotated

import numpy as np
from annotated_types import Ge
from numpy.typing import NDArray

from penstock.core.contracts import DirectSampler
from penstock.core.registry import register
from penstock.core.rng import permute


@register("sampler", "infinite")
class InfiniteSampler(DirectSampler):
    """Endless shuffled records, in epochs of a chosen number of batches.

    Passes over the data follow each other, each shuffled anew, and an epoch is a piece of them. The
    epoch sets the interval of validation and checkpoints; `trainer.max_steps` ends the run. Uses
    constant memory.

    Args:
        steps: Batches in an epoch; null: enough for `n` positions, rounded up.
    """

    def __init__(
        self, n: int, seed: int = 0, *, batch_size: int, steps: Annotated[int, Ge(1)] | None = None
    ) -> None:
        self._n, self._seed = n, seed
        self._length = (steps or -(-n // batch_size)) * batch_size

    def __len__(self) -> int:
        return self._length

    def at(self, epoch: int, positions: NDArray[np.int64]) -> NDArray[np.int64]:
        passes, places = np.divmod(epoch * self._length + positions, self._n)
        records = np.empty_like(places)
        for number in np.unique(passes).tolist():
            rows = passes == number
            records[rows] = permute(places[rows], length=self._n, seed=self._seed, epoch=number)
        return records
