"""Shuffle records endlessly, for training that counts iterations."""

from __future__ import annotations

from typing import Annotated

import numpy as np
from annotated_types import Ge
from numpy.typing import NDArray

from penstock.core.contracts import Index
from penstock.core.registry import register
from penstock.core.rng import permute


@register("sampler", "infinite")
class InfiniteSampler:
    """Endless shuffled records, in epochs of a chosen number of batches.

    Passes over the data follow each other, each shuffled anew, and an epoch is a piece of them. The
    epoch sets the interval of validation and checkpoints; `trainer.max_steps` ends the run. Uses
    constant memory.

    Args:
        steps: Batches in an epoch; null: enough for all records, rounded up.
    """

    def __init__(
        self,
        n: int,
        index: Index | None = None,
        seed: int = 0,
        *,
        batch_size: int,
        steps: Annotated[int, Ge(1)] | None = None,
    ) -> None:
        self._n = n
        self._seed = seed
        self._length = (steps or -(-n // batch_size)) * batch_size

    def __len__(self) -> int:
        return self._length

    def indices(self, epoch: int, start: int, stop: int) -> NDArray[np.int64]:
        """Return the records at positions ``start .. stop - 1`` of `epoch`, int64."""
        first, end = epoch * self._length + start, epoch * self._length + stop
        pieces = [np.zeros(0, np.int64)]
        while first < end:
            number, place = divmod(first, self._n)
            last = min(place + end - first, self._n)
            places = np.arange(place, last, dtype=np.int64)
            pieces.append(permute(places, length=self._n, seed=self._seed, epoch=number))
            first += last - place
        return np.concatenate(pieces)
