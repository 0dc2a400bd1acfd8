"""Batches with a fixed number of classes, and as many records of each, for metric learning."""

from __future__ import annotations

from abc import abstractmethod
from bisect import bisect_right
from math import ceil, log2, prod
from typing import Annotated

import numpy as np
from annotated_types import Ge

from penstock.core.contracts import Index
from penstock.core.registry import register
from penstock.core.rng import KeyedRng, Stream, permute
from penstock.datasets.records.lengths import read_column
from penstock.pipeline.epoch_orders import Int64Array, StoredOrderSampler, StoredTable

_LABELS = "give the storage labels (dataset/annotations=filename takes identities from file names)"


class _ByClass(StoredOrderSampler):
    """A sampler whose batches have different classes, and several records of each.

    Args:
        values: The class of each record, int64 [n].
        column: The index column of the classes.
        seed: Seed of the run.
        shape: (B, P, K): batches, classes in a batch, and records of one class at a place.
    """

    _least: float = -np.inf  # leaves records of lower classes out

    def __init__(
        self, values: Int64Array, column: str, seed: int, shape: tuple[int, int, int]
    ) -> None:
        self.same, self._shape = (column,), shape
        super().__init__(StoredTable(values, "classes"), prod(shape), seed, shape=shape)

    @abstractmethod
    def _quotas(self, counts: Int64Array, epoch: int) -> Int64Array:
        """Return the maximum places of each class in an epoch, int64 [C]."""

    def _order(self, epoch: int) -> Int64Array:
        """Return the records, int64 [B * P * K], without a class twice in a batch."""
        records = np.flatnonzero(self._values >= self._least)
        values = self._values[records]
        _, owners, counts = np.unique(values, return_inverse=True, return_counts=True)
        num_batches, per_batch, together = self._shape
        rng = KeyedRng().at(self._seed, epoch, 0, Stream.SAMPLER)
        places = np.minimum(self._quotas(counts, epoch), num_batches)
        taken = np.repeat(np.arange(len(places)), places)
        taken = taken[_shuffled(rng, len(taken))[-num_batches * per_batch :]]
        places = np.bincount(taken, minlength=len(places))
        # Each class goes to consecutive batches, so that no batch has a class twice.
        order = _shuffled(rng, len(places))
        dealt = np.repeat(order, places[order]).reshape(per_batch, num_batches).T
        classes = _mixed(dealt, rng).ravel()
        # The records of each class, shuffled, are drawn in cycles.
        records = records[np.argsort(owners, kind="stable")]
        records = records[np.lexsort((rng.random(len(records)), np.sort(owners)))]
        order = np.argsort(classes, kind="stable")
        number = np.empty_like(classes)  # earlier places of the same class
        number[order] = np.arange(len(classes)) - np.searchsorted(classes[order], classes[order])
        draws = (number[:, None] * together + np.arange(together)) % counts[classes][:, None]
        return records[(np.cumsum(counts) - counts)[classes][:, None] + draws].ravel()


@register("sampler", "identity")
class IdentitySampler(_ByClass):
    """Batches of P identities with K images each, without an identity twice in a batch.

    Hermans, Beyer and Leibe, "In Defense of the Triplet Loss for Person Re-Identification",
    arXiv:1703.07737, section 2. P is ``loader.batch_size`` / K. The images of an identity form
    groups of K, the last filled with its first images. Each group occurs at most once in an epoch,
    which has as many batches as distinct identities can fill.

    Args:
        images_per_identity: K.
        column: Index column of the identity, an integer. Values below 0 are unknown people, and
            are left out.
    """

    _least = 0

    def __init__(
        self,
        n: int,
        index: Index,
        seed: int = 0,
        *,
        batch_size: int,
        images_per_identity: Annotated[int, Ge(1)] = 4,
        column: str = "label",
    ) -> None:
        values = read_column("identity", index, column, _LABELS)
        self.group, each = images_per_identity, max(batch_size // images_per_identity, 1)
        counts = np.unique(values[values >= self._least], return_counts=True)[1]
        quotas = self._quotas(counts, 0)

        def are_too_many(batches: int) -> bool:  # one would have an identity twice
            return int(np.minimum(quotas, batches).sum()) < each * batches

        most = range(1, quotas.sum() // each + 1)
        num_batches = bisect_right(most, False, key=are_too_many)
        if not num_batches:
            text = f"a batch needs {each} different identities, but the data has {len(counts)}"
            remedy = f"set loader.batch_size={len(counts) * self.group} or less"
            raise ValueError(f"identity sampler: {text}; {remedy}")
        super().__init__(values, column, seed, (num_batches, each, self.group))

    def _quotas(self, counts: Int64Array, epoch: int) -> Int64Array:
        return -(-counts // self.group)


@register("sampler", "balanced_batch")
class BalancedBatchSampler(_ByClass):
    """Batches with equally many samples of each class; records of rare classes repeat.

    Every batch and every rank has all classes, or `classes` of them, equally often. The records of
    a class are shuffled anew each epoch and drawn in cycles.

    Args:
        classes: Classes in a batch, a divisor of its size; null: all classes with records.
        num_batches: Batches in an epoch; null: enough for `n` positions, rounded up.
        column: Index column of the class.
    """

    def __init__(
        self,
        n: int,
        index: Index,
        seed: int = 0,
        *,
        batch_size: int,
        classes: Annotated[int, Ge(1)] | None = None,
        num_batches: Annotated[int, Ge(1)] | None = None,
        column: str = "label",
    ) -> None:
        values = read_column("balanced_batch", index, column, _LABELS)
        known = len(np.unique(values))
        self.group = classes or max(known, 1)
        if self.group > known:
            text = f"classes is {classes}, but the data has {known}; lower sampler.classes"
            raise ValueError(f"balanced_batch sampler: {text}")
        shape = num_batches or -(-n // batch_size), self.group, max(batch_size // self.group, 1)
        super().__init__(values, column, seed, shape)

    def _quotas(self, counts: Int64Array, epoch: int) -> Int64Array:
        count = len(counts)
        places, rest = divmod(self._shape[0] * self.group, count)
        quotas = np.full(count, places)
        quotas[permute(np.arange(rest), length=count, seed=self._seed, epoch=epoch)] += 1
        return quotas

    def _order(self, epoch: int) -> Int64Array:
        """Return the records, int64 [B * K * P]: classes alternate."""
        return super()._order(epoch).reshape(self._shape).transpose(0, 2, 1).ravel()


def _shuffled(rng: np.random.Generator, *shape: int) -> Int64Array:
    """Return a random permutation, along the last axis."""
    return np.argsort(rng.random(shape), axis=-1, kind="stable")


def _mixed(classes: Int64Array, rng: np.random.Generator) -> Int64Array:
    """Mix batches until all arrangements are about equally likely, keeping classes distinct.

    Disjoint pairs of batches exchange the classes they do not share: Strona et al., "A fast and
    unbiased procedure ..." (curveball), Nature Communications 5, 2014.
    """
    num_batches = len(classes)
    classes = classes.copy()
    pairs = num_batches // 2
    for _ in range(8 + ceil(log2(num_batches)) if pairs else 0):
        first, second = _shuffled(rng, num_batches)[: 2 * pairs].reshape(2, pairs)
        pool = np.sort(np.hstack([classes[first], classes[second]]), axis=1)
        keys = rng.random(pool.shape)
        both = pool[:, 1:] == pool[:, :-1]
        keys[:, :-1][both] = -1.0  # one copy goes to the first batch,
        keys[:, 1:][both] = 2.0  # the second copy to the second
        pool = np.take_along_axis(pool, np.argsort(keys, axis=1, kind="stable"), axis=1)
        classes[first], classes[second] = np.hsplit(pool, 2)
    return np.take_along_axis(classes, _shuffled(rng, *classes.shape), axis=1)
