"""Sample batches with the same number of records of each class."""

from __future__ import annotations

from typing import Annotated

import numpy as np
from annotated_types import Ge
from numpy.typing import NDArray

from penstock.core.contracts import Index, SamplerCapabilities
from penstock.core.machine_cache import signature_of
from penstock.core.registry import register
from penstock.core.rng import permute
from penstock.pipeline.epoch_orders import StoredOrderSampler
from penstock.pipeline.samplers.class_batches import (
    Members,
    class_column,
    epoch_of_classes,
    stored_classes,
)


@register("sampler", "balanced_batch")
class BalancedBatchSampler(StoredOrderSampler):
    """Batches with equally many samples of each class; records of rare classes repeat.

    Every batch and every rank has all classes, or `classes` of them, equally often. Classes occur
    in equally many batches, within one. The records of a class are shuffled anew each epoch and
    drawn in cycles. Computes one epoch's order at a time, once per machine.

    Args:
        classes: Classes in a batch, a divisor of `loader.batch_size`; null for all classes.
        num_batches: Batches in an epoch; null: enough for all records, rounded up.
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
        values = class_column("balanced_batch", column, index, remedy="give the storage labels, "
                              "or set sampler.column to the column of classes")  # fmt: skip
        known = len(np.unique(values))
        per_batch = classes or known
        if per_batch > known:
            raise ValueError(
                f"balanced_batch sampler: classes is {per_batch}, but the data has "
                f"{known}; lower sampler.classes"
            )
        if not per_batch or batch_size % per_batch:
            near = max(round(batch_size / max(per_batch, 1)), 1) * per_batch
            raise ValueError(
                f"balanced_batch sampler: loader.batch_size {batch_size} does not hold "
                f"{per_batch} classes equally often; set loader.batch_size={near}, or "
                f"sampler.classes to a number that divides it"
            )
        self._seed = seed
        self._batch_size = batch_size
        self._num_batches = num_batches or -(-n // batch_size)
        self._table, digest = stored_classes(values)
        signature = signature_of(
            sampler="balanced_batch", seed=seed, classes=digest,
            shape=[self._num_batches, batch_size, per_batch],
        )  # fmt: skip
        super().__init__(signature, self._num_batches * batch_size)
        self._group = per_batch
        self.capabilities = SamplerCapabilities(group=self._group, same=(column,))

    def _order(self, epoch: int) -> NDArray[np.int64]:
        members = Members.of(self._table.array)
        places, rest = divmod(self._num_batches * self._group, len(members))
        quotas = np.full(len(members), places, np.int64)
        quotas[permute(np.arange(rest), length=len(quotas), seed=self._seed, epoch=epoch)] += 1
        records = epoch_of_classes(
            members,
            quotas,
            num_batches=self._num_batches,
            per_batch=self._group,
            together=self._batch_size // self._group,
            seed=self._seed,
            epoch=epoch,
        )
        return records.transpose(0, 2, 1).ravel()  # classes alternate
