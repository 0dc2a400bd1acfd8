"""Sample batches of P identities with K images each, for metric learning."""

from __future__ import annotations

from typing import Annotated, Literal

import numpy as np
from annotated_types import Ge
from numpy.typing import NDArray

from penstock.core.contracts import Index, SamplerCapabilities
from penstock.core.machine_cache import signature_of
from penstock.core.registry import register
from penstock.pipeline.epoch_orders import StoredOrderSampler
from penstock.pipeline.samplers.class_batches import (
    Members,
    batches_without_repeats,
    class_column,
    epoch_of_classes,
    stored_classes,
)


@register("sampler", "identity")
class IdentitySampler(StoredOrderSampler):
    """Batches of P identities with K images each, without an identity twice in a batch.

    Hermans, Beyer and Leibe, "In Defense of the Triplet Loss for Person Re-Identification",
    arXiv:1703.07737, section 2. The images of an identity form ceil(images / K) groups of K, the
    last filled with its first images. Each group occurs at most once in an epoch. An epoch has as
    many batches as distinct identities can fill; it leaves out different groups each time.

    The K images of an identity are adjacent and on one rank. Computes one epoch's order at a time,
    once per machine.

    Args:
        identities: P; null: `loader.batch_size` / K.
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
        together = images_per_identity
        per_batch = identities or batch_size // together
        if per_batch * together != batch_size:
            raise ValueError(
                f"identity sampler: {max(per_batch, 1)} identities x {together} images are "
                f"{max(per_batch, 1) * together}, and loader.batch_size is {batch_size}; set "
                f"loader.batch_size={max(per_batch, 1) * together}"
            )
        values = class_column("identity", column, index, remedy="set sampler.column to the "
                              "column of identities (dataset/annotations=filename reads them "
                              "from file names), or give the storage labels")  # fmt: skip
        self._at_least = together if short == "drop" else 1
        self._lowest = 0 if junk == "drop" else None
        members = Members.of(values, at_least=self._at_least, lowest=self._lowest)
        if len(members) < per_batch:
            few = len(np.unique(values)) - len(members)
            left_out = f" ({few} left out by short={short}, junk={junk})" if few else ""
            raise ValueError(
                f"identity sampler: {per_batch} different identities for each batch, but the data "
                f"has {len(members)}{left_out}; lower loader.batch_size, or raise "
                f"sampler.images_per_identity"
            )
        self._seed = seed
        self._per_batch = per_batch
        self._num_batches = batches_without_repeats(-(-members.counts // together), per_batch)
        self._table, digest = stored_classes(values)
        signature = signature_of(
            sampler="identity", seed=seed, classes=digest, shape=[per_batch, together],
            kept=[self._at_least, self._lowest],
        )  # fmt: skip
        super().__init__(signature, self._num_batches * per_batch * together)
        self._group = together
        self.capabilities = SamplerCapabilities(group=self._group, same=(column,))

    def _order(self, epoch: int) -> NDArray[np.int64]:
        values = self._table.array
        members = Members.of(values, at_least=self._at_least, lowest=self._lowest)
        records = epoch_of_classes(
            members,
            -(-members.counts // self._group),
            num_batches=self._num_batches,
            per_batch=self._per_batch,
            together=self._group,
            seed=self._seed,
            epoch=epoch,
        )
        return records.ravel()
