"""Sample batches of a fixed number of tokens, for a collate that packs them into rows."""

from __future__ import annotations

from typing import Annotated

import numpy as np
from annotated_types import Ge
from numpy.typing import NDArray

from penstock.core.contracts import Index, SamplerCapabilities
from penstock.core.machine_cache import signature_of
from penstock.core.registry import register
from penstock.core.rng import permute
from penstock.datasets.records.lengths import read_lengths
from penstock.pipeline.epoch_orders import StoredOrderSampler, StoredTable, digest_of


@register("sampler", "packed")
class PackedSampler(StoredOrderSampler):
    """Every record once, shuffled anew every epoch, in batches of at most `max_tokens` of data.

    For ``collate=packed``, which puts several sequences into a row, so that padding does not count.
    The shuffled epoch is cut into batches of equal tokens, within half a record at either end.
    Every epoch has the same number of batches. Evaluation batches have ``loader.eval_batch_size``
    records.

    Args:
        max_tokens: Maximum tokens of a batch over all ranks; each takes its share of the records.
        column: Index column of the lengths.
        max_length: Longer records count as this long, for a transform that cuts them.
    """

    def __init__(
        self,
        n: int,
        index: Index | None = None,
        seed: int = 0,
        *,
        max_tokens: Annotated[int, Ge(2)] = 4096,
        column: str = "length",
        max_length: Annotated[int, Ge(1)] | None = None,
    ) -> None:
        lengths = read_lengths("packed", index, column, n, most=max_length)
        longest = int(lengths.max(initial=1))
        if longest >= max_tokens:
            row = int(lengths.argmax())
            key = index.keys(np.array([row]))[0] if index is not None else row
            raise ValueError(
                f"packed sampler: record {row} ({key}) has length {longest}, and max_tokens is "
                f"{max_tokens}; set sampler.max_tokens={2 * longest} or more, or "
                f"sampler.max_length if a transform cuts longer records"
            )
        self._n, self._seed = n, seed
        # Cuts fall between records, so a batch may exceed its share by one record.
        self._num_batches = min(n, -(-int(lengths.sum()) // (max_tokens - longest)) or 1)
        self._digest = digest_of(lengths)
        signature = signature_of(
            sampler="packed", seed=seed, n=n, lengths=self._digest, max_tokens=max_tokens
        )
        super().__init__(signature, n, self._num_batches)
        name = f"table-lengths-{self._digest}"
        self._lengths = StoredTable.of(name, lengths, what="table of lengths")

    @property
    def capabilities(self) -> SamplerCapabilities:
        """Return the hash of the lengths and the batch cuts."""
        return SamplerCapabilities(fingerprint=self.fingerprint, cuts=self.batch_cuts)

    def fingerprint(self) -> str:
        """Return a hash of the lengths."""
        return self._digest

    def _order(self, epoch: int) -> NDArray[np.int64]:
        order = permute(np.arange(self._n), length=self._n, seed=self._seed, epoch=epoch)
        lengths = self._lengths.array[order]
        middles = 2 * np.cumsum(lengths) - lengths  # twice each record's middle
        batch = middles * self._num_batches // max(2 * int(lengths.sum()), 1)
        cuts = np.searchsorted(batch, np.arange(self._num_batches + 1))
        cuts[-1] = self._n
        return np.concatenate([cuts, order])
