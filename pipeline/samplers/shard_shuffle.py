"""Shuffle with locality: shuffle the shards, and records among a few neighbouring shards."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any, NamedTuple

import numpy as np
from annotated_types import Ge
from numpy.typing import NDArray

from penstock.core.contracts import DirectSampler
from penstock.core.registry import register
from penstock.core.rng import permute
from penstock.pipeline.epoch_orders import StoredTable


class _Epoch(NamedTuple):
    """The shards of an epoch: their end positions and end records, [s]; window bounds, [w + 1]."""

    number: int
    ends: NDArray[np.int64]
    records: NDArray[np.int64]
    windows: NDArray[np.int64]


@register("sampler", "shard_shuffle")
class ShardShuffleSampler(DirectSampler):
    """Every record once, shuffled anew every epoch, within windows of several shards.

    Shuffles the shards, then the records within each window. An epoch reads a few shards at a time,
    which suits hard disks, files read in groups, and caches of part of the data. Computes any
    position directly, in memory proportional to the number of shards.

    Args:
        n: Number of records.
        seed: Seed of the run.
        shards: Returns the first record of each shard, int64 [s], ascending; None: no shards.
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
        self._last: _Epoch | None = None

    def __len__(self) -> int:
        return self._n

    def fingerprint(self) -> str:
        """Return a hash of the shard boundaries."""
        return self._bounds.digest

    def at(self, epoch: int, positions: NDArray[np.int64]) -> NDArray[np.int64]:
        shards = self._epoch(epoch)
        windows = np.searchsorted(shards.windows, positions, side="right") - 1
        mixed = np.empty_like(positions)
        for window in np.unique(windows).tolist():
            first, end = shards.windows[window : window + 2].tolist()
            rows = windows == window
            mixed[rows] = first + self._permuted(
                positions[rows] - first, end - first, epoch, window
            )
        places = np.searchsorted(shards.ends, mixed, side="right")
        return shards.records[places] + mixed - shards.ends[places]

    def _permuted(
        self, values: NDArray[np.int64], length: int, epoch: int, window: int = -1
    ) -> NDArray[np.int64]:
        """Permute places of a window, or shards, each by a key of its own."""
        key = epoch * (self._windows + 1) + window + 1
        return permute(values, length=length, seed=self._seed, epoch=key)

    def _epoch(self, epoch: int) -> _Epoch:
        # Replaced atomically, so threads need no lock.
        if (last := self._last) is None or last.number != epoch:
            bounds = self._bounds.array
            count = len(bounds) - 1
            order = self._permuted(np.arange(count), count, epoch)
            ends = np.cumsum(bounds[order + 1] - bounds[order])
            windows = np.append(0, ends)[np.arange(self._windows + 1) * count // self._windows]
            last = self._last = _Epoch(epoch, ends, bounds[order + 1], windows)
        return last

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "_last": None}
