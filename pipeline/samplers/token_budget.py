"""Sample batches of a fixed number of tokens and any number of records."""

from __future__ import annotations

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
        lengths = read_lengths("token_budget", index, column, n, most=max_length)
        if n and lengths.max() > max_tokens:
            row = int(lengths.argmax())
            key = index.keys(np.array([row]))[0] if index is not None else row
            raise ValueError(
                f"token_budget sampler: record {row} ({key}) has length {lengths[row]}, and "
                f"max_tokens is {max_tokens}; set sampler.max_tokens={lengths[row]} or more, or "
                f"sampler.max_length if a transform cuts longer records"
            )
        self._n = n
        self._seed = seed
        self._digest = digest_of(lengths)
        classes = _like_lengths(lengths)
        sizes = _batch_sizes(lengths, classes, max_tokens, batch_size)
        signature = signature_of(
            sampler="token_budget", seed=seed, n=n, lengths=self._digest, batch_size=batch_size,
            max_tokens=max_tokens,
        )  # fmt: skip
        super().__init__(signature, n, len(sizes))
        self._classes = StoredTable.of(
            f"table-length-classes-{self._digest}", classes, what="table of lengths"
        )
        self._sizes = StoredTable.of(
            f"table-batch-sizes-{signature}", sizes, what="table of batch sizes"
        )

    @property
    def capabilities(self) -> SamplerCapabilities:
        """Return the hash of the lengths and the batch cuts."""
        return SamplerCapabilities(fingerprint=self.fingerprint, cuts=self.batch_cuts)

    def fingerprint(self) -> str:
        """Return a hash of the lengths."""
        return self._digest

    def _order(self, epoch: int) -> NDArray[np.int64]:
        shuffled = permute(np.arange(self._n), length=self._n, seed=self._seed, epoch=epoch)
        # Longest first; the shuffled order decides among similar lengths.
        lined_up = shuffled[np.argsort(-self._classes.array[shuffled], kind="stable")]
        # The permutation uses at most the first n words.
        stop = self._n + self._sizes.array.size
        words = philox_words(self._seed, epoch, self._n, stop, Stream.SAMPLER)[:, 0]
        batches = np.argsort(words, kind="stable")
        sizes = self._sizes.array[batches]
        firsts = (np.cumsum(self._sizes.array) - self._sizes.array)[batches]
        moved = firsts - (np.cumsum(sizes) - sizes)  # offset between a batch's old and new place
        order = lined_up[np.arange(self._n) + np.repeat(moved, sizes)]
        return np.concatenate([[0], np.cumsum(sizes), order])


def _like_lengths(lengths: NDArray[np.int64]) -> NDArray[np.int64]:
    """Group lengths into classes of similar length, int64 [n]; longer classes have higher ids."""
    bounds, longest = [1], int(lengths.max(initial=0))
    while bounds[-1] < longest:
        bounds.append(max(bounds[-1] + 1, int(bounds[-1] * _LIKE)))
    return np.searchsorted(np.array(bounds), lengths)


def _batch_sizes(
    lengths: NDArray[np.int64], classes: NDArray[np.int64], max_tokens: int, most: int
) -> NDArray[np.int64]:
    """Cut the records, longest first, into batches; return the size of each, int64 [B].

    A record counts as the longest of its class, so the sizes fit any order in the class.
    """
    _, of_class, counts = np.unique(-classes, return_inverse=True, return_counts=True)
    longest = np.zeros(len(counts), np.int64)
    np.maximum.at(longest, of_class, lengths)
    sizes, at = [np.zeros(0, np.int64)], 0
    for length, end in zip(longest.tolist(), np.cumsum(counts).tolist(), strict=True):
        size = min(most, max_tokens // max(length, 1))
        begun = max(-(-(end - at) // size), 0)
        sizes.append(np.full(begun, size))
        at += begun * size
    found = np.concatenate(sizes)
    found[-1:] -= at - len(lengths)  # the last batch has the rest
    return found
