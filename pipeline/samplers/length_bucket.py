"""Sample records of similar length into each batch, to reduce padding."""

from __future__ import annotations

from typing import Annotated

import numpy as np
from annotated_types import Ge
from numpy.typing import NDArray

from penstock.core.contracts import Index
from penstock.core.registry import register
from penstock.core.rng import Stream, permute, philox_words
from penstock.datasets.records.lengths import read_lengths
from penstock.pipeline.epoch_orders import StoredOrderSampler, StoredTable


@register("sampler", "length_bucket")
class LengthBucketSampler(StoredOrderSampler):
    """Every record once, shuffled anew every epoch, records of similar length in each batch.

    The shuffled epoch is sorted by length within windows of many batches, and the batches are
    shuffled. The last, incomplete batch has any lengths. Every rank gets long and short records, so
    equal work. For a fixed number of tokens per batch, use ``sampler=token_budget``.

    Args:
        column: Index column of the lengths.
        window: Batches sorted together; more batches pad less, and mix less.
        max_length: Longer records count as this long, for a transform that cuts them.
    """

    def __init__(
        self,
        n: int,
        index: Index | None = None,
        seed: int = 0,
        batch_size: int = 1,
        *,
        column: str = "length",
        window: Annotated[int, Ge(1)] = 50,
        max_length: Annotated[int, Ge(1)] | None = None,
    ) -> None:
        lengths = read_lengths("length_bucket", index, column, most=max_length)
        self._batch_size, self._window = batch_size, window
        table = StoredTable(lengths, "lengths")
        super().__init__(table, n, seed, batch_size=batch_size, window=window)

    def _order(self, epoch: int) -> NDArray[np.int64]:
        lengths, n, size = self._values, self._length, self._batch_size
        order = permute(np.arange(n), length=n, seed=self._seed, epoch=epoch)
        batches = order[: n // size * size].reshape(-1, size)
        for start in range(0, len(batches), self._window):
            window = batches[start : start + self._window]
            # The shuffled order decides among equals.
            places = np.argsort(lengths[window.ravel()], kind="stable")
            window[:] = window.ravel()[places].reshape(window.shape)[:, _spread(size)]
        # The permutation uses at most the first n words.
        words = philox_words(self._seed, epoch, n, n + len(batches), Stream.SAMPLER)[:, 0]
        batches[:] = batches[np.argsort(words, kind="stable")]
        return order


def _spread(size: int) -> NDArray[np.int64]:
    """Return a permutation of ``0 .. size - 1`` that spreads every run of places evenly.

    Reverses the places' bits: J. G. van der Corput, "Verteilungsfunktionen", 1935.
    """
    width = max(size - 1, 1).bit_length()
    bits = np.arange(size)[:, None] >> np.arange(width) & 1
    return np.argsort(np.argsort(bits @ (1 << np.arange(width)[::-1])))
