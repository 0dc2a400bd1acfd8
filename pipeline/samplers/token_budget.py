"""Sample batches of a fixed number of tokens and any number of records."""

from __future__ import annotations

from typing import Annotated

import numpy as np
from annotated_types import Ge
from numpy.typing import NDArray

from penstock.core.contracts import Index
from penstock.core.registry import register
from penstock.core.rng import Stream, permute, philox_words
from penstock.datasets.records.lengths import read_lengths, refuse_longer
from penstock.pipeline.epoch_orders import StoredOrderSampler, StoredTable

_LIKE = 1.1  # lengths within this ratio are shuffled together


@register("sampler", "token_budget")
class TokenBudgetSampler(StoredOrderSampler):
    """Every record once, shuffled anew every epoch, in batches of at most `max_tokens`.

    A batch counts as its records times its longest record, padding included, and has at most
    ``loader.batch_size`` records. Evaluation batches have ``loader.eval_batch_size``. Records of
    similar length, within a tenth, are shuffled together; then the records are sorted by length and
    cut, and the batches shuffled. Every epoch is cut at the same lengths into the same number of
    batches.

    Args:
        batch_size: Maximum records of a batch over all ranks.
        max_tokens: Maximum tokens of a batch over all ranks, padding included. Each rank takes its
            share of the records.
        column: Index column of the lengths.
        max_length: Longer records count as this long, for a transform that cuts them.
    """

    def __init__(
        self,
        n: int,
        index: Index | None = None,
        seed: int = 0,
        batch_size: int = 1,
        *,
        max_tokens: Annotated[int, Ge(1)],
        column: str = "length",
        max_length: Annotated[int, Ge(1)] | None = None,
    ) -> None:
        lengths = read_lengths("token_budget", index, column, most=max_length)
        refuse_longer("token_budget", index, lengths, max_tokens, int(lengths.max(initial=1)))
        self._batch_size, self._max_tokens = batch_size, max_tokens
        num_batches, table = len(self._sizes(lengths)), StoredTable(lengths, "lengths")
        super().__init__(
            table, n, seed, num_batches=num_batches, batch_size=batch_size, max_tokens=max_tokens
        )

    def _order(self, epoch: int) -> NDArray[np.int64]:
        n, sizes = self._length, self._sizes(self._values)
        shuffled = permute(np.arange(n), length=n, seed=self._seed, epoch=epoch)
        # Longest first; the shuffled order decides among similar lengths.
        similar = _similar(self._values)
        lined_up = shuffled[np.argsort(-similar[shuffled], kind="stable")]
        # The permutation uses at most the first n words.
        words = philox_words(self._seed, epoch, n, n + sizes.size, Stream.SAMPLER)[:, 0]
        batches = np.argsort(words, kind="stable")
        pieces = np.split(lined_up, np.cumsum(sizes)[:-1])
        return np.concatenate(
            [[0], np.cumsum(sizes[batches]), *(pieces[batch] for batch in batches.tolist())]
        )

    def _sizes(self, lengths: NDArray[np.int64]) -> NDArray[np.int64]:
        """Cut the records, longest first, into batches; return the size of each, int64 [B].

        A record counts as the longest of its class, so the sizes fit any order in the class.
        """
        _, of_class, counts = np.unique(-_similar(lengths), return_inverse=True, return_counts=True)
        longest = np.ones(len(counts), np.int64)
        np.maximum.at(longest, of_class, lengths)
        sizes: list[int] = []
        at = 0
        for length, end in zip(longest.tolist(), np.cumsum(counts).tolist(), strict=True):
            size = min(self._batch_size, self._max_tokens // length)
            begun = max(-(-(end - at) // size), 0)
            sizes += [size] * begun
            at += begun * size
        found = np.array(sizes, np.int64)
        found[-1:] -= at - len(lengths)  # the last batch has the rest
        return found


def _similar(lengths: NDArray[np.int64]) -> NDArray[np.int64]:
    """Group lengths into classes of similar length, int64 [n]; longer classes have higher ids."""
    bounds, longest = [1], int(lengths.max(initial=0))
    while bounds[-1] < longest:
        bounds.append(max(bounds[-1] + 1, int(bounds[-1] * _LIKE)))
    return np.searchsorted(np.array(bounds), lengths)
