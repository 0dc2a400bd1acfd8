"""Shuffle with locality: shuffle the shards, and records among a few neighbouring shards."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any, NamedTuple

import numpy as np
from annotated_types import Ge
from numpy.typing import NDArray

from penstock.core.contracts import Index, SamplerCapabilities
from penstock.core.registry import register
from penstock.core.rng import permute
from penstock.pipeline.epoch_orders import StoredTable, digest_of


@register("sampler", "shard_shuffle")
class ShardShuffleSampler:
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
        index: Index | None = None,
        seed: int = 0,
        shards: Callable[[], NDArray[np.int64]] | None = None,
        *,
        window: Annotated[int, Ge(1)] = 32,
        shard_records: Annotated[int, Ge(1)] = 1_000,
    ) -> None:
        firsts = np.zeros(0, np.int64) if shards is None else shards()
        if len(firsts) < 2:
            firsts = np.arange(0, n, shard_records, dtype=np.int64)
        bounds = np.append(firsts, n)
        self._n = n
        self._seed = seed
        self._windows = max(1, -(-len(firsts) // window))
        self._digest = digest_of(bounds)
        name = f"table-shards-{self._digest}"
        self._bounds = StoredTable.of(name, bounds, what="table of shards")
        self._last: _Epoch | None = None

    @property
    def capabilities(self) -> SamplerCapabilities:
        """Return random access to positions, and the hash of the shards."""
        return SamplerCapabilities(at=self.at, fingerprint=self.fingerprint)

    def __len__(self) -> int:
        return self._n

    def fingerprint(self) -> str:
        """Return a hash of the shard boundaries."""
        return self._digest

    def indices(self, epoch: int, start: int, stop: int) -> NDArray[np.int64]:
        """Return the records at positions ``start .. stop - 1`` of `epoch`, int64."""
        return self.at(epoch, np.arange(start, stop, dtype=np.int64))

    def at(self, epoch: int, positions: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the records at any positions of `epoch`, int64 [n]."""
        shards = self._epoch(epoch)
        windows = np.searchsorted(shards.windows, positions, side="right") - 1
        mixed = np.empty(len(positions), np.int64)
        for window in np.unique(windows).tolist():
            first, length = shards.windows[window], np.diff(shards.windows[window : window + 2])[0]
            rows = np.flatnonzero(windows == window)
            mixed[rows] = first + permute(
                positions[rows] - first,
                length=int(length),
                seed=self._seed,
                epoch=epoch * (self._windows + 1) + window + 1,  # a key of its own
            )
        places = np.searchsorted(shards.ends, mixed, side="right")
        return shards.records[places] + mixed - shards.ends[places]

    def _epoch(self, epoch: int) -> _Epoch:
        # Replaced atomically, so threads need no lock.
        if (last := self._last) is None or last.number != epoch:
            bounds = self._bounds.array
            count = len(bounds) - 1
            order = permute(
                np.arange(count), length=count, seed=self._seed, epoch=epoch * (self._windows + 1)
            )
            ends = np.cumsum(bounds[order + 1] - bounds[order])
            cuts = np.arange(self._windows + 1) * count // self._windows
            windows = np.append(0, ends)[cuts]
            last = self._last = _Epoch(epoch, ends, bounds[order + 1], windows)
        return last

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "_last": None}


class _Epoch(NamedTuple):
    """The shards in an epoch's order: end positions [s], end records [s], windows [w + 1]."""

    number: int
    ends: NDArray[np.int64]
    records: NDArray[np.int64]
    windows: NDArray[np.int64]
