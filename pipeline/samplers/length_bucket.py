"""Sample records of similar length into each batch, to reduce padding."""

from __future__ import annotations

from functools import lru_cache
from typing import Annotated

import numpy as np
from annotated_types import Ge
from numpy.typing import NDArray

from penstock.core.contracts import Index, SamplerCapabilities
from penstock.core.machine_cache import signature_of
from penstock.core.registry import register
from penstock.core.rng import Stream, permute, philox_words
from penstock.datasets.records.lengths import read_lengths
from penstock.pipeline.epoch_orders import StoredOrderSampler, StoredTable, digest_of


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
        lengths = read_lengths("length_bucket", index, column, n, most=max_length)
        self._n = n
        self._seed = seed
        self._batch_size = batch_size
        self._window = window
        self._digest = digest_of(lengths)
        signature = signature_of(
            sampler="length_bucket", seed=seed, n=n, lengths=self._digest, batch_size=batch_size,
            window=window,
        )  # fmt: skip
        super().__init__(signature, n)
        name = f"table-lengths-{self._digest}"
        self._table = StoredTable.of(name, lengths, what="table of lengths")

    @property
    def capabilities(self) -> SamplerCapabilities:
        """Return the hash of the lengths."""
        return SamplerCapabilities(fingerprint=self.fingerprint)

    def fingerprint(self) -> str:
        """Return a hash of the lengths."""
        return self._digest

    def _order(self, epoch: int) -> NDArray[np.int64]:
        lengths, size = self._table.array, self._batch_size
        order = permute(np.arange(self._n), length=self._n, seed=self._seed, epoch=epoch)
        count = self._n // size
        spread, step = _spread(size), self._window * size
        for start in range(0, count * size, step):
            window = order[start : min(start + step, count * size)]
            # The shuffled order decides among equals.
            window[:] = window[np.argsort(lengths[window], kind="stable")]
            batches = window.reshape(-1, size)
            batches[:] = batches[:, spread]
        # The permutation uses at most the first n words.
        words = philox_words(
            self._seed, epoch, self._n, self._n + count, Stream.SAMPLER
        )[:, 0]  # fmt: skip
        whole = order[: count * size].reshape(count, size)
        whole[:] = whole[np.argsort(words, kind="stable")]
        return order


@lru_cache(maxsize=4)
def _spread(size: int) -> NDArray[np.int64]:
    """Return a permutation of ``0 .. size - 1`` that spreads every run of places evenly.

    Reverses the places' bits: J. G. van der Corput, "Verteilungsfunktionen", 1935.
    """
    places = np.arange(size, dtype=np.int64)
    reversed_bits = np.zeros(size, np.int64)
    for _ in range(max(size - 1, 1).bit_length()):
        reversed_bits = reversed_bits << 1 | places & 1
        places >>= 1
    spread = np.argsort(np.argsort(reversed_bits))
    spread.flags.writeable = False
    return spread
