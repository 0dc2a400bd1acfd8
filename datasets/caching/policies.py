"""What makes room in a pool: the record used longest ago, or only what is of no use."""

from __future__ import annotations

import numpy as np

from datasets.caching.pool_store import PoolStore

_EVICTED_SHARE = 64
_LIMIT, _LOOKUPS, _RETURNS, _IS_FULL = range(4)


class LeastRecentlyUsed:
    """Admits everything, and evicts what was used longest ago (LRU), some of it at a time."""

    def begin(self, pool: PoolStore) -> None:
        """Nothing to begin with."""

    def wants(self, pool: PoolStore) -> bool:
        """Always."""
        return True

    def make_room(self, pool: PoolStore, blocks: int) -> bool:
        """Evict until so many blocks are free."""
        if pool.free_blocks < blocks:
            pool.reclaim()
        while pool.free_blocks < blocks:
            residents = pool.residents
            if not residents.size:
                return False
            many = max(1, residents.size // _EVICTED_SHARE)
            oldest = np.argpartition(pool.stamps[residents], many - 1)[:many]
            pool.evict(residents[oldest])
        return True

    def note(self, pool: PoolStore, lookups: int, returns: int) -> None:
        """Nothing depends on it."""


class Adaptive:
    """Takes as much memory as pays, between a sixteenth of the pool and all of it.

    It keeps what it has, like `keep`, up to a limit of its own. After every quarter of an epoch
    of lookups it looks at two figures. *Returns* are misses of records that were asked for within
    the last two epochs: hits that more memory would have given. If they are 2 % of the lookups or
    more, and something was refused, the limit doubles. And entries that nobody asked for in two
    epochs are dropped, their memory goes back to the system, and a limit more than twice of what
    is used is halved. So what is read once takes a sixteenth, a hot part takes its own size, and
    shuffled epochs take all there is.
    """

    least_share = 16
    worth = 0.02

    def begin(self, pool: PoolStore) -> None:
        """Start small."""
        pool.words[_LIMIT] = self._least(pool)

    def wants(self, pool: PoolStore) -> bool:
        """Whether nothing was refused in this window."""
        return not pool.words[_IS_FULL]

    def make_room(self, pool: PoolStore, blocks: int) -> bool:
        """Whether so many fit under the limit."""
        if pool.free_blocks < blocks:
            pool.reclaim()
        used = pool.num_blocks - pool.free_blocks
        fits = used + blocks <= pool.words[_LIMIT]
        pool.words[_IS_FULL] |= not fits
        return fits

    def note(self, pool: PoolStore, lookups: int, returns: int) -> None:
        """Count, and at the end of a window change the limit."""
        words = pool.words
        words[_LOOKUPS] += lookups
        words[_RETURNS] += returns
        if words[_LOOKUPS] < max(256, pool.count // 4):
            return
        residents = pool.residents
        cold = residents[pool.stamps[residents] < pool.clock - 2 * pool.count]
        if cold.size:
            pool.give_back(pool.evict(cold))
        used, limit = pool.num_blocks - pool.free_blocks, words[_LIMIT]
        if words[_RETURNS] >= self.worth * words[_LOOKUPS] and words[_IS_FULL]:
            limit = min(pool.num_blocks, 2 * limit)
        elif 2 * used < limit:
            limit = max(self._least(pool), limit // 2)
        words[_LIMIT] = limit
        words[_LOOKUPS] = words[_RETURNS] = words[_IS_FULL] = 0

    def _least(self, pool: PoolStore) -> int:
        return max(1, pool.num_blocks // self.least_share)
