"""Assign classes to batches so that no batch holds a class twice."""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil, log2

import numpy as np
from numpy.typing import NDArray

from penstock.core.contracts import Index
from penstock.core.rng import KeyedRng, Stream
from penstock.pipeline.epoch_orders import StoredTable, digest_of

Int64Array = NDArray[np.int64]


def stored_classes(values: Int64Array) -> tuple[StoredTable, str]:
    """Store the class of each record, int64 [n], for all processes; return table and hash."""
    digest = digest_of(values)
    return StoredTable.of(f"table-classes-{digest}", values, what="table of classes"), digest


def class_column(sampler: str, column: str, index: Index | None, *, remedy: str) -> Int64Array:
    """Return an integer column of an index, int64 [n]; raise ValueError if there is none."""
    known = () if index is None else index.columns
    if index is None or column not in known:
        raise ValueError(
            f"{sampler} sampler: no column {column!r} in the index; columns: "
            f"{', '.join(known) or 'none'}; {remedy}"
        )
    values = np.asarray(index.column(column))
    if values.dtype.kind not in "iub":
        raise ValueError(
            f"{sampler} sampler: column {column!r} is {values.dtype}, expected whole numbers; set "
            f"sampler.column to a column of integers"
        )
    return values.astype(np.int64)


@dataclass(frozen=True, slots=True)
class Members:
    """Records per class, int64 [C], at least 1, and the records of all classes, class by class."""

    counts: Int64Array
    records: Int64Array

    @classmethod
    def of(cls, values: Int64Array, *, at_least: int = 1, lowest: int | None = None) -> Members:
        """Group records by value, int64 [n], without rare values and values below `lowest`."""
        names, of_name, counts = np.unique(values, return_inverse=True, return_counts=True)
        kept = counts >= at_least
        if lowest is not None:
            kept &= names >= lowest
        records = np.argsort(of_name, kind="stable")
        return cls(
            counts[kept].astype(np.int64),
            records[np.repeat(kept, counts)].astype(np.int64),
        )

    def __len__(self) -> int:
        return len(self.counts)


def batches_without_repeats(quotas: Int64Array, per_batch: int) -> int:
    """Return the most batches of `per_batch` different classes, each class at most `quotas` times.

    The sum of min(quota, B) over the classes must be at least `per_batch` * B for B batches.
    """
    low, high = 0, int(quotas.sum()) // per_batch
    while low < high:
        middle = (low + high + 1) // 2
        if int(np.minimum(quotas, middle).sum()) >= per_batch * middle:
            low = middle
        else:
            high = middle - 1
    return low


def epoch_of_classes(
    members: Members,
    quotas: Int64Array,
    *,
    num_batches: int,
    per_batch: int,
    together: int,
    seed: int,
    epoch: int,
) -> Int64Array:
    """Return the records of an epoch, int64 [B, P, K], without a class twice in a batch.

    Classes are assigned to batches at random, each at most `quotas` times. The records of a class
    are shuffled, then drawn in cycles. B is `num_batches`, P the classes in a batch (`per_batch`),
    and K the records of one class at a place (`together`).
    """
    rng = KeyedRng().at(seed, epoch, 0, Stream.SAMPLER)
    places = _trimmed(np.minimum(quotas, num_batches), num_batches * per_batch, rng)
    classes = _shuffled(_dealt(places, num_batches, per_batch, rng), rng)
    return _drawn(members, classes.ravel(), together, rng).reshape(*classes.shape, -1)


def _trimmed(places: Int64Array, total: int, rng: np.random.Generator) -> Int64Array:
    """Remove places at random until `total` are left; return the places of each class."""
    excess = int(places.sum()) - total
    assert excess >= 0
    owners = np.repeat(np.arange(len(places)), places)
    taken = np.argsort(rng.random(len(owners)), kind="stable")[:excess]
    return places - np.bincount(owners[taken], minlength=len(places))


def _dealt(
    places: Int64Array, num_batches: int, per_batch: int, rng: np.random.Generator
) -> Int64Array:
    """Deal each class to consecutive batches, int64 [B, P], so that no batch has a class twice."""
    order = np.argsort(rng.random(len(places)), kind="stable")
    return np.repeat(order, places[order]).reshape(per_batch, num_batches).T


def _shuffled(classes: Int64Array, rng: np.random.Generator) -> Int64Array:
    """Mix batches until all arrangements are about equally likely, keeping classes distinct.

    Strona et al., "A fast and unbiased procedure to randomize ecological binary matrices with fixed
    row and column totals" (curveball), Nature Communications 5, 2014. Disjoint pairs of batches
    exchange the classes they do not share.
    """
    num_batches, per_batch = classes.shape
    classes = classes.copy()
    pairs = num_batches // 2
    for _ in range(8 + ceil(log2(num_batches)) if pairs else 0):
        order = np.argsort(rng.random(num_batches), kind="stable")[: 2 * pairs]
        pool = np.sort(np.hstack([classes[order[:pairs]], classes[order[pairs:]]]), axis=1)
        keys = rng.random(pool.shape)
        both = pool[:, 1:] == pool[:, :-1]
        keys[:, :-1][both] = -1.0  # one copy goes to the first batch,
        keys[:, 1:][both] = 2.0  # the second copy to the second
        pool = np.take_along_axis(pool, np.argsort(keys, axis=1, kind="stable"), axis=1)
        classes[order[:pairs]] = pool[:, :per_batch]
        classes[order[pairs:]] = pool[:, per_batch:]
    rows = np.argsort(rng.random(classes.shape), axis=1, kind="stable")
    return np.take_along_axis(classes, rows, axis=1)


def _drawn(
    members: Members, classes: Int64Array, together: int, rng: np.random.Generator
) -> Int64Array:
    """Return the records at places of the given classes, int64 [n, K]."""
    owners = np.repeat(np.arange(len(members)), members.counts)
    records = members.records[np.lexsort((rng.random(len(owners)), owners))]
    starts = np.cumsum(members.counts) - members.counts
    order = np.argsort(classes, kind="stable")
    number = np.empty(len(classes), np.int64)  # earlier places of the same class
    before = np.searchsorted(classes[order], np.arange(len(members)))
    number[order] = np.arange(len(classes)) - before[classes[order]]
    draws = number[:, None] * together + np.arange(together)
    return records[starts[classes][:, None] + draws % members.counts[classes][:, None]]
