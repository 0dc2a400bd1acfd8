"""Sample batches of P identities with K images each, for metric learning."""

from __future__ import annotations

from typing import Annotated, Literal

import numpy as np
from annotated_types import Ge
from numpy.typing import NDArray

from penstock.core.contracts import Index
from penstock.core.registry import register
from penstock.datasets.records.lengths import read_column
from penstock.pipeline.epoch_orders import StoredOrderSampler, StoredTable
from penstock.pipeline.samplers.class_batches import (
    LABELS,
    Members,
    batches_without_repeats,
    epoch_of_classes,
)


@register("sampler", "identity")
class IdentitySampler(StoredOrderSampler):
    """Batches of P identities with K images each, without an identity twice in a batch.

    Hermans, Beyer and Leibe, "In Defense of the Triplet Loss for Person Re-Identification",
    arXiv:1703.07737, section 2. The images of an identity form ceil(images / K) groups of K, the
    last filled with its first images. Each group occurs at most once in an epoch. An epoch has as
    many batches as distinct identities can fill; it leaves out different groups each time. The K
    images of an identity are adjacent and on one rank.

    Args:
        identities: P; null: ``loader.batch_size`` / K.
        images_per_identity: K.
        column: Index column of the identity, an integer.
        short: ``repeat`` the images of identities with fewer than K, or ``drop`` these identities.
        junk: ``drop`` identities below 0, unknown people in re-identification sets, or ``keep``.
    """

    def __init__(
        self,
        n: int,
        index: Index | None = None,
        seed: int = 0,
        *,
        batch_size: int,
        identities: Annotated[int, Ge(1)] | None = None,
        images_per_identity: Annotated[int, Ge(1)] = 4,
        column: str = "label",
        short: Literal["repeat", "drop"] = "repeat",
        junk: Literal["drop", "keep"] = "drop",
    ) -> None:
        self.group, self.same = images_per_identity, (column,)
        self._per_batch = identities or batch_size // self.group
        assert self._per_batch * self.group == batch_size, "the config is checked"
        values = read_column("identity", index, column, LABELS)
        self._at_least = self.group if short == "drop" else 1
        self._lowest = 0 if junk == "drop" else None
        members = Members.of(values, at_least=self._at_least, lowest=self._lowest)
        if len(members) < self._per_batch:
            few = len(np.unique(values)) - len(members)
            raise ValueError(
                f"identity sampler: {self._per_batch} different identities for each batch, but the "
                f"data has {len(members)} ({few} left out by short={short}, junk={junk}); lower "
                f"loader.batch_size"
            )
        quotas = -(-members.counts // self.group)
        self._num_batches = batches_without_repeats(quotas, self._per_batch)
        decisive = [batch_size, self.group, self._at_least, self._lowest]
        length, table = self._num_batches * batch_size, StoredTable(values, "classes")
        super().__init__(table, length, seed, decisive=decisive)

    def _order(self, epoch: int) -> NDArray[np.int64]:
        members = Members.of(self._values, at_least=self._at_least, lowest=self._lowest)
        quotas = -(-members.counts // self.group)
        shape = self._num_batches, self._per_batch, self.group
        return epoch_of_classes(members, quotas, shape, self._seed, epoch).ravel()
