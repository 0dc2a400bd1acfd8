"""Assign classes to batches so that no batch holds a class twice."""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass
from math import ceil, log2

import numpy as np
from numpy.typing import NDArray

from penstock.core.rng import KeyedRng, Stream

Int64Array = NDArray[np.int64]


LABELS = "give the storage labels (dataset/annotations=filename takes identities from file names)"
"""Remedy for data without a column of classes."""


@dataclass(frozen=True, slots=True)
class Members:
    """Records per class, int64 [C], at least 1, and the records of all classes, class by class."""

    counts: Int64Array
    records: Int64Array

    @classmethod
    def of(cls, values: Int64Array, *, at_least: int = 1, lowest: int | None = None) -> Members:
        """Group records by value, int64 [n], without rare values and values below `lowest`."""
        names, counts = np.unique(values, return_counts=True)
        kept = (counts >= at_least) & (True if lowest is None else names >= lowest)
        records = np.argsort(values, kind="stable")
        return cls(counts[kept], records[np.repeat(kept, counts)])

    def __len__(self) -> int:
        return len(self.counts)


def batches_without_repeats(quotas: Int64Array, per_batch: int) -> int:
    """Return the most batches of `per_batch` different classes, each class at most `quotas` times.

    The sum of min(quota, B) over the classes must be at least `per_batch` * B for B batches.
    """

    def is_too_many(batches: int) -> bool:
        return int(np.minimum(quotas, batches).sum()) < per_batch * batches

    most = int(quotas.sum()) // per_batch
    return bisect_right(range(1, most + 1), False, key=is_too_many)


def epoch_of_classes(
    members: Members, quotas: Int64Array, shape: tuple[int, int, int], seed: int, epoch: int
) -> Int64Array:
    """Return the records of an epoch, int64 [B, P, K], without a class twice in a batch.

    The records of a class are shuffled, then drawn in cycles.
    `quotas` are the maximum places of each class, int64 [C]. `shape` is (B, P, K): the number of
    batches, classes in a batch, and records of one class at a place.
    """
    num_batches, per_batch, together = shape
    rng = KeyedRng().at(seed, epoch, 0, Stream.SAMPLER)
    places = np.minimum(quotas, num_batches)
    owners = np.repeat(np.arange(len(places)), places)
    excess = len(owners) - num_batches * per_batch
    places = places - np.bincount(owners[_order(rng, len(owners))[:excess]], minlength=len(places))
    # Each class goes to consecutive batches, so that no batch has a class twice.
    order = _order(rng, len(places))
    dealt = np.repeat(order, places[order]).reshape(per_batch, num_batches).T
    classes = _shuffled(dealt, rng)
    return _drawn(members, classes.ravel(), together, rng).reshape(shape)


def _order(rng: np.random.Generator, *shape: int) -> Int64Array:
    """Return a random permutation, along the last axis."""
    return np.argsort(rng.random(shape), axis=-1, kind="stable")


def _shuffled(classes: Int64Array, rng: np.random.Generator) -> Int64Array:
    """Mix batches until all arrangements are about equally likely, keeping classes distinct.

    Strona et al., "A fast and unbiased procedure to randomize ecological binary matrices with fixed
    row and column totals" (curveball), Nature Communications 5, 2014. Disjoint pairs of batches
    exchange the classes they do not share.
    """
    num_batches = len(classes)
    classes = classes.copy()
    pairs = num_batches // 2
    for _ in range(8 + ceil(log2(num_batches)) if pairs else 0):
        first, second = _order(rng, num_batches)[: 2 * pairs].reshape(2, pairs)
        pool = np.sort(np.hstack([classes[first], classes[second]]), axis=1)
        keys = rng.random(pool.shape)
        both = pool[:, 1:] == pool[:, :-1]
        keys[:, :-1][both] = -1.0  # one copy goes to the first batch,
        keys[:, 1:][both] = 2.0  # the second copy to the second
        pool = np.take_along_axis(pool, np.argsort(keys, axis=1, kind="stable"), axis=1)
        classes[first], classes[second] = np.hsplit(pool, 2)
    return np.take_along_axis(classes, _order(rng, *classes.shape), axis=1)


def _drawn(
    members: Members, classes: Int64Array, together: int, rng: np.random.Generator
) -> Int64Array:
    """Return the records at places of the given classes, int64 [n, K]."""
    owners = np.repeat(np.arange(len(members)), members.counts)
    records = members.records[np.lexsort((rng.random(len(owners)), owners))]
    starts = np.cumsum(members.counts) - members.counts
    order = np.argsort(classes, kind="stable")
    number = np.empty_like(classes)  # earlier places of the same class
    number[order] = np.arange(len(classes)) - np.searchsorted(classes[order], classes[order])
    draws = number[:, None] * together + np.arange(together)
    return records[starts[classes][:, None] + draws % members.counts[classes][:, None]]
