"""Sample records of similar length, or a fixed number of tokens, into each batch."""

from __future__ import annotations

from typing import Annotated, Any

import numpy as np
from annotated_types import Ge

from penstock.core.contracts import Index
from penstock.core.registry import register
from penstock.core.rng import Stream, permute, philox_words
from penstock.datasets.records.lengths import read_lengths, refuse_longer
from penstock.pipeline.epoch_orders import Int64Array, StoredOrderSampler, StoredTable

_LIKE = 1.1  # lengths within this ratio are shuffled together


class _ByLength(StoredOrderSampler):
    """A sampler that shuffles the records, forms batches by length, and shuffles the batches."""

    def __init__(self, lengths: Int64Array, seed: int, **more: Any) -> None:
        super().__init__(StoredTable(lengths, "lengths"), len(lengths), seed, **more)

    def _records(self, epoch: int) -> Int64Array:
        return permute(np.arange(self._length), length=self._length, seed=self._seed, epoch=epoch)

    def _batches(self, epoch: int, count: int) -> Int64Array:
        # The permutation of the records uses at most the first words.
        first = self._length
        words = philox_words(self._seed, epoch, first, first + count, Stream.SAMPLER)[:, 0]
        return np.argsort(words, kind="stable")


@register("sampler", "length_bucket")
class LengthBucketSampler(_ByLength):
    """Every record once, shuffled anew every epoch, records of similar length in each batch.

    The shuffled epoch is sorted by length within windows of many batches, and the batches are
    shuffled. The last, incomplete batch has any lengths. Every rank gets equal work.

    Args:
        column: Index column of the lengths.
        window: Batches sorted together; more batches pad less, and mix less.
    """

    def __init__(
        self,
        n: int,
        index: Index,
        seed: int = 0,
        batch_size: int = 1,
        *,
        column: str = "length",
        window: Annotated[int, Ge(1)] = 50,
    ) -> None:
        lengths = read_lengths("length_bucket", index, column, most=None)
        self._batch_size, self._window = batch_size, window
        super().__init__(lengths, seed, batch_size=batch_size, window=window)

    def _order(self, epoch: int) -> Int64Array:
        order, size = self._records(epoch), self._batch_size
        batches = order[: len(order) // size * size].reshape(-1, size)
        for start in range(0, len(batches), self._window):
            window = batches[start : start + self._window]
            # The shuffled order decides among equals.
            places = np.argsort(self._values[window.ravel()], kind="stable")
            window[:] = window.ravel()[places].reshape(window.shape)[:, _spread(size)]
        batches[:] = batches[self._batches(epoch, len(batches))]
        return order


@register("sampler", "token_budget")
class TokenBudgetSampler(_ByLength):
    """Every record once, shuffled anew every epoch, in batches of at most `max_tokens`.

    A batch counts as its records times its longest record, and has at most ``loader.batch_size``
    records. Records of similar length, within a tenth, are shuffled together; then the records are
    sorted by length and cut, and the batches shuffled. Every epoch has as many batches.

    Args:
        max_tokens: Maximum tokens of a batch over all ranks, padding included.
        column: Index column of the lengths.
        max_length: Longer records count as this long, for a transform that cuts them.
    """

    def __init__(
        self,
        n: int,
        index: Index,
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
        most = [batch_size, max_tokens]
        super().__init__(lengths, seed, num_batches=len(self._sizes(lengths)), most=most)

    def _order(self, epoch: int) -> Int64Array:
        sizes, similar = self._sizes(self._values), _similar(self._values)
        shuffled = self._records(epoch)
        # Longest first; the shuffled order decides among similar lengths.
        lined_up = shuffled[np.argsort(-similar[shuffled], kind="stable")]
        batches = self._batches(epoch, len(sizes))
        pieces = np.split(lined_up, np.cumsum(sizes)[:-1])
        return np.concatenate([[0], np.cumsum(sizes[batches]), *(pieces[b] for b in batches)])

    def _sizes(self, lengths: Int64Array) -> Int64Array:
        """Cut the records, longest first, into batches; return the size of each, int64 [B].

        A record counts as the longest of its class, so the sizes fit any order in the class.
        """
        ordered = np.sort(lengths)[::-1]
        _, firsts, classes = np.unique(-_similar(ordered), return_index=True, return_inverse=True)
        longest = np.maximum(ordered[firsts][classes], 1)
        cuts = [0]
        while cuts[-1] < len(longest):
            size = min(self._batch_size, self._max_tokens // int(longest[cuts[-1]]))
            cuts.append(cuts[-1] + size)
        return np.diff(np.minimum(cuts, len(longest)))


@register("sampler", "packed")
class PackedSampler(_ByLength):
    """Every record once, shuffled anew every epoch, in batches of at most `max_tokens` of data.

    For ``collate=packed``, which puts several sequences into a row, so that padding does not count.
    The shuffled epoch is cut into batches of equal tokens, within half a record at either end.
    Every epoch has as many batches.

    Args:
        max_tokens: Maximum tokens of a batch over all ranks; every record is shorter.
        column: Index column of the lengths.
        max_length: Longer records count as this long, for a transform that cuts them.
    """

    def __init__(
        self,
        n: int,
        index: Index,
        seed: int = 0,
        *,
        max_tokens: Annotated[int, Ge(2)] = 4096,
        column: str = "length",
        max_length: Annotated[int, Ge(1)] | None = None,
    ) -> None:
        lengths = read_lengths("packed", index, column, most=max_length)
        longest = int(lengths.max(initial=1))
        refuse_longer("packed", index, lengths, max_tokens - 1, 2 * longest)
        # Cuts fall between records, so a batch may exceed its share by one record.
        num_batches = min(n, -(-int(lengths.sum()) // (max_tokens - longest)) or 1)
        super().__init__(lengths, seed, num_batches=num_batches)

    def _order(self, epoch: int) -> Int64Array:
        count, order = self._num_cuts - 1, self._records(epoch)
        lengths = self._values[order]
        middles = 2 * np.cumsum(lengths) - lengths  # twice each record's middle
        batch = middles * count // max(2 * int(lengths.sum()), 1)
        cuts = np.searchsorted(batch, np.arange(count + 1))
        cuts[-1] = self._length
        return np.concatenate([cuts, order])


def _spread(size: int) -> Int64Array:
    """Return a permutation of ``0 .. size - 1`` that spreads every run of places evenly.

    Reverses the places' bits: J. G. van der Corput, "Verteilungsfunktionen", 1935.
    """
    width = max(size - 1, 1).bit_length()
    bits = np.arange(size)[:, None] >> np.arange(width) & 1
    return np.argsort(np.argsort(bits @ (1 << np.arange(width)[::-1])))


def _similar(lengths: Int64Array) -> Int64Array:
    """Group lengths into classes of similar length, int64 [n]; longer classes have higher ids."""
    bounds, longest = [1], int(lengths.max(initial=0))
    while bounds[-1] < longest:
        bounds.append(max(bounds[-1] + 1, int(bounds[-1] * _LIKE)))
    return np.searchsorted(np.array(bounds), lengths)
