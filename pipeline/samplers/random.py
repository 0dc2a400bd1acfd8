"""Draw every record in order, or shuffled by keyed permutations; no epoch is stored."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Annotated

import numpy as np
from annotated_types import Ge

from penstock.core.contracts import DirectSampler
from penstock.core.registry import register
from penstock.core.rng import permute
from penstock.pipeline.epoch_orders import Int64Array, StoredTable, by_value


@register("sampler", "sequential")
class SequentialSampler(DirectSampler):
    """Every record once, in the order of the index, or an evenly spread subset.

    Args:
        count: Records to take, evenly spread over the index; null: all.
    """

    def __init__(self, n: int, *, count: Annotated[int, Ge(0)] | None = None) -> None:
        self._n, self._count = n, n if count is None else min(count, n)

    def __len__(self) -> int:
        return self._count

    def at(self, epoch: int, positions: Int64Array) -> Int64Array:
        return positions if self._count == self._n else positions * self._n // self._count


@register("sampler", "inference")
def make_inference_sampler(n: int) -> SequentialSampler:
    """Alias of ``sequential``."""
    return SequentialSampler(n)


@register("sampler", "random")
class RandomSampler(DirectSampler):
    """Every record once, shuffled anew every epoch, in constant memory."""

    def __init__(self, n: int, seed: int = 0) -> None:
        self._n, self._seed = n, seed

    def __len__(self) -> int:
        return self._n

    def at(self, epoch: int, positions: Int64Array) -> Int64Array:
        return permute(positions, length=self._n, seed=self._seed, epoch=epoch)


@register("sampler", "infinite")
class InfiniteSampler(DirectSampler):
    """Endless shuffled records, in epochs of a chosen number of batches.

    Passes over the data follow each other, each shuffled anew, and an epoch is a piece of them.

    Args:
        steps: Batches in an epoch; null: enough for `n` positions, rounded up.
    """

    def __init__(
        self, n: int, seed: int = 0, *, batch_size: int, steps: Annotated[int, Ge(1)] | None = None
    ) -> None:
        self._n, self._seed = n, seed
        self._length = (steps or -(-n // batch_size)) * batch_size

    def __len__(self) -> int:
        return self._length

    def at(self, epoch: int, positions: Int64Array) -> Int64Array:
        passes, places = np.divmod(epoch * self._length + positions, self._n)
        records = np.empty_like(places)
        for number, rows in by_value(passes):
            records[rows] = permute(places[rows], length=self._n, seed=self._seed, epoch=number)
        return records


@register("sampler", "shard_shuffle")
class ShardShuffleSampler(DirectSampler):
    """Every record once, shuffled anew every epoch, within windows of several shards.

    Shuffles the shards, then the records within each window. An epoch reads a few shards at a time,
    which suits hard disks, files read in groups, and caches of part of the data.

    Args:
        window: Shards whose records are mixed; more shards shuffle better.
        shard_records: Consecutive records that count as a shard if the data has fewer than two.
    """

    def __init__(
        self,
        n: int,
        seed: int = 0,
        shards: Callable[[], Int64Array | None] | None = None,
        *,
        window: Annotated[int, Ge(1)] = 32,
        shard_records: Annotated[int, Ge(1)] = 1_000,
    ) -> None:
        firsts = None if shards is None else shards()
        if firsts is None or len(firsts) < 2:
            firsts = np.arange(0, n, shard_records, dtype=np.int64)
        self._n, self._seed = n, seed
        self._windows = max(1, -(-len(firsts) // window))
        self._bounds = StoredTable(np.append(firsts, n), "shards")

    def __len__(self) -> int:
        return self._n

    def fingerprint(self) -> str:
        """Return a hash of the shard boundaries."""
        return self._bounds.digest

    def at(self, epoch: int, positions: Int64Array) -> Int64Array:
        ends, records, bounds = _shuffled(self._bounds, self._windows, self._seed, epoch)
        windows = np.searchsorted(bounds, positions, side="right") - 1
        mixed = np.empty_like(positions)
        for window, rows in by_value(windows):
            first, end = bounds[window : window + 2].tolist()
            key = epoch * (self._windows + 1) + window + 1
            places = positions[rows] - first
            mixed[rows] = first + permute(places, length=end - first, seed=self._seed, epoch=key)
        places = np.searchsorted(ends, mixed, side="right")
        return records[places] + mixed - ends[places]


@lru_cache(maxsize=8)
def _shuffled(
    shards: StoredTable, windows: int, seed: int, epoch: int
) -> tuple[Int64Array, Int64Array, Int64Array]:
    """Shuffle shards; return end positions and end records, [s], and bounds of windows, [w + 1]."""
    table = shards.array
    count = len(table) - 1
    order = permute(np.arange(count), length=count, seed=seed, epoch=epoch * (windows + 1))
    ends = np.cumsum(table[order + 1] - table[order])
    return ends, table[order + 1], np.append(0, ends)[np.arange(windows + 1) * count // windows]
