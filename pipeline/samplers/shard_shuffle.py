"""Shuffle with locality: shuffle the shards, and records among a few neighbouring shards."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Annotated

import numpy as np
from annotated_types import Ge
from numpy.typing import NDArray

from penstock.core.contracts import DirectSampler
from penstock.core.registry import register
from penstock.core.rng import permute
from penstock.pipeline.epoch_orders import StoredTable


@register("sampler", "shard_shuffle")
class ShardShuffleSampler(DirectSampler):
    """Every record once, shuffled anew every epoch, within windows of several shards.

    Shuffles the shards, then the records within each window. An epoch reads a few shards at a time,
    which suits hard disks, files read in groups, and caches of part of the data. Computes any
    position directly, in memory proportional to the number of shards.

    Args:
        window: Shards whose records are mixed; more shards shuffle better.
        shard_records: Consecutive records that count as a shard if the data has fewer than two.
    """

    def __init__(
        self,
        n: int,
        seed: int = 0,
        shards: Callable[[], NDArray[np.int64] | None] | None = None,
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

    def at(self, epoch: int, positions: NDArray[np.int64]) -> NDArray[np.int64]:
        ends, records, bounds = _shuffled(self._bounds, self._windows, self._seed, epoch)
        windows = np.searchsorted(bounds, positions, side="right") - 1
        mixed = np.empty_like(positions)
        for window in np.unique(windows).tolist():
            first, end = bounds[window : window + 2].tolist()
            rows = windows == window
            key = epoch * (self._windows + 1) + window + 1
            mixed[rows] = first + permute(
                positions[rows] - first, length=end - first, seed=self._seed, epoch=key
            )
        places = np.searchsorted(ends, mixed, side="right")
        return records[places] + mixed - ends[places]


@lru_cache(maxsize=8)
def _shuffled(
    shards: StoredTable, windows: int, seed: int, epoch: int
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
    """Shuffle shards; return end positions and end records, [s], and bounds of windows, [w + 1]."""
    table = shards.array
    count = len(table) - 1
    order = permute(np.arange(count), length=count, seed=seed, epoch=epoch * (windows + 1))
    ends = np.cumsum(table[order + 1] - table[order])
    return ends, table[order + 1], np.append(0, ends)[np.arange(windows + 1) * count // windows]
