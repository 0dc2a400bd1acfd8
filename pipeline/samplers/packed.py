"""Sample batches of a fixed number of tokens, for a collate that packs them into rows."""

from __future__ import annotations

from typing import Annotated

import numpy as np
from annotated_types import Ge
from numpy.typing import NDArray

from penstock.core.contracts import Index
from penstock.core.registry import register
from penstock.core.rng import permute
from penstock.datasets.records.lengths import read_lengths, refuse_longer
from penstock.pipeline.epoch_orders import StoredOrderSampler, StoredTable


@register("sampler", "packed")
class PackedSampler(StoredOrderSampler):
    """Every record once, shuffled anew every epoch, in batches of at most `max_tokens` of data.

    For ``collate=packed``, which puts several sequences into a row, so that padding does not count.
    The shuffled epoch is cut into batches of equal tokens, within half a record at either end.
    Every epoch has the same number of batches. Evaluation batches have ``loader.eval_batch_size``
    records.

    Args:
        max_tokens: Maximum tokens of a batch over all ranks; every record is shorter.
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
        lengths = read_lengths("packed", index, column, most=max_length)
        refuse_longer("packed", index, lengths, max_tokens - 1, 2 * int(lengths.max(initial=1)))
        # Cuts fall between records, so a batch may exceed its share by one record.
        share = max_tokens - int(lengths.max(initial=1))
        self._num_batches = min(n, -(-int(lengths.sum()) // share) or 1)
        table = StoredTable(lengths, "lengths")
        super().__init__(table, n, seed, num_batches=self._num_batches)

    def _order(self, epoch: int) -> NDArray[np.int64]:
        n, count = self._length, self._num_batches
        order = permute(np.arange(n), length=n, seed=self._seed, epoch=epoch)
        lengths = self._values[order]
        middles = 2 * np.cumsum(lengths) - lengths  # twice each record's middle
        batch = middles * count // max(2 * int(lengths.sum()), 1)
        cuts = np.searchsorted(batch, np.arange(count + 1))
        cuts[-1] = n
        return np.concatenate([cuts, order])
