"""Sample batches with the same number of records of each class."""

from __future__ import annotations

from typing import Annotated

import numpy as np
from annotated_types import Ge
from numpy.typing import NDArray

from penstock.core.contracts import Index
from penstock.core.registry import register
from penstock.core.rng import permute
from penstock.datasets.records.lengths import read_column
from penstock.pipeline.epoch_orders import StoredOrderSampler, StoredTable
from penstock.pipeline.samplers.class_batches import LABELS, Members, epoch_of_classes


@register("sampler", "balanced_batch")
class BalancedBatchSampler(StoredOrderSampler):
    """Batches with equally many samples of each class; records of rare classes repeat.

    Every batch and every rank has all classes, or `classes` of them, equally often. Classes occur
    in equally many batches, within one. The records of a class are shuffled anew each epoch and
    drawn in cycles.

    Args:
        classes: Classes in a batch, a divisor of its size; null: all classes with records.
        num_batches: Batches in an epoch; null: enough for `n` positions, rounded up.
        column: Index column of the class.
    """

    def __init__(
        self,
        n: int,
        index: Index | None = None,
        seed: int = 0,
        *,
        batch_size: int,
        classes: Annotated[int, Ge(1)] | None = None,
        num_batches: Annotated[int, Ge(1)] | None = None,
        column: str = "label",
    ) -> None:
        values = read_column("balanced_batch", index, column, LABELS)
        known = len(np.unique(values))
        per_batch = classes or max(known, 1)
        if per_batch > known:
            text = f"classes is {per_batch}, but the data has {known}; lower sampler.classes"
            raise ValueError(f"balanced_batch sampler: {text}")
        if batch_size % per_batch:
            near = max(round(batch_size / per_batch), 1) * per_batch
            raise ValueError(
                f"balanced_batch sampler: loader.batch_size {batch_size} does not hold {per_batch} "
                f"classes equally often; set loader.batch_size={near}, or sampler.classes to a "
                f"divisor"
            )
        self.group, self.same = per_batch, (column,)
        self._shape = num_batches or -(-n // batch_size), per_batch, batch_size // per_batch
        table = StoredTable(values, "classes")
        super().__init__(table, self._shape[0] * batch_size, seed, shape=self._shape)

    def _order(self, epoch: int) -> NDArray[np.int64]:
        members = Members.of(self._values)
        count = len(members)
        places, rest = divmod(self._shape[0] * self.group, count)
        quotas = np.full(count, places)
        quotas[permute(np.arange(rest), length=count, seed=self._seed, epoch=epoch)] += 1
        records = epoch_of_classes(members, quotas, self._shape, self._seed, epoch)
        return records.transpose(0, 2, 1).ravel()  # classes alternate
