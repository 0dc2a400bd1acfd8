"""Entries in shared memory that make room for others: the policies `lru` and `adaptive`."""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from datasets.caching.entries import Buffer, Entry, write_parts
from datasets.caching.process_life import is_alive
from datasets.process_lock import ProcessLock
from datasets.shared_area import SharedArea

_HEADER_BYTES = 4096
_PREFIX = struct.Struct("<qq")  # size, record
_PAGE = 4096
_FREE, _CLOCK, _VERSION, _IS_DIRTY = range(4)
POLICY_WORDS = 8
"""Words of the header from this one on belong to the policy."""
_MOST_VERSIONS = 1 << 30
_NOTED_AT_ONCE = 64


class Policy(Protocol):
    """Decides what makes room for whom; called under the pool's lock."""

    def begin(self, pool: PoolStore) -> None:
        """The pool is new."""

    def wants(self, pool: PoolStore) -> bool:
        """Whether it may admit anything now; asked without the lock."""

    def make_room(self, pool: PoolStore, blocks: int) -> bool:
        """See to it that so many blocks are free; False: nothing is admitted."""

    def note(self, pool: PoolStore, lookups: int, returns: int) -> None:
        """So many lookups; misses of what was asked for in the last two epochs among them."""


class PoolStore:
    """A table of places by record number, and entries as chains of blocks of one size.

    Chains need no free memory in one piece. What is changed in the table and the list of free
    blocks is changed under a lock, between two stores that mark it; who finds the mark set knows
    that the last holder was killed, and makes the list anew from the table, which changes by
    single stores of eight bytes. Entries are written outside of the lock, to blocks that bear the
    writer's process id, and are published when they are whole. Readers take no lock: they copy,
    and look whether the entry is still the one that it was.

    Args:
        count: Number of records.
        size_bytes: Memory in all, tables included.
        block_bytes: Size of a block, a multiple of 4096.
        policy: What makes room.

    Raises:
        ValueError: There is no room beside the tables.
    """

    is_private = True

    def __init__(self, count: int, size_bytes: int, *, block_bytes: int, policy: Policy) -> None:
        self._count, self._block_bytes, self._policy = count, block_bytes, policy
        self.num_blocks = (size_bytes - _HEADER_BYTES - 16 * count - _PAGE) // (block_bytes + 12)
        if self.num_blocks < 1:
            raise ValueError(
                f"dataset.cache.max_bytes: {size_bytes:,} bytes, of which the tables of {count:,} "
                f"records take {_HEADER_BYTES + 16 * count:,}; allow more"
            )
        self._attach(SharedArea(size_bytes - size_bytes % _PAGE))
        self._free[:] = np.arange(self.num_blocks)[::-1]
        self._words[_FREE] = self.num_blocks
        policy.begin(self)

    def _attach(self, area: SharedArea) -> None:
        count, blocks = self._count, self.num_blocks
        self._area = area
        self._lock = ProcessLock(area.descriptor)
        self._words = area.words(0, 64)
        self._table = area.words(_HEADER_BYTES, count)
        self._stamps = area.words(_HEADER_BYTES + 8 * count, count)
        self._places = area.array(_HEADER_BYTES, count, np.int64)
        self.stamps = area.array(_HEADER_BYTES + 8 * count, count, np.int64)
        at = _HEADER_BYTES + 16 * count
        self._chain, self._writers, self._free = (
            area.array(at + 4 * blocks * n, blocks, np.int32) for n in range(3)
        )
        self._next = memoryview(self._chain)  # type: ignore[arg-type]
        self._data_at = -(-(at + 12 * blocks) // _PAGE) * _PAGE
        data = area.array(self._data_at, blocks * self._block_bytes, np.uint8)
        self._data = data.reshape(blocks, self._block_bytes)
        self._prefixes = area.words(self._data_at, blocks * self._block_bytes // 8)
        self._noted = [0, 0]

    @property
    def wants_more(self) -> bool:
        """Whether another entry may be admitted."""
        return self._policy.wants(self)

    @property
    def words(self) -> memoryview:
        """The policy's words, int64 [56]."""
        return self._words[POLICY_WORDS:]

    @property
    def count(self) -> int:
        """Number of records, held or not."""
        return self._count

    @property
    def clock(self) -> int:
        """Lookups so far, about: two at the same moment may count as one."""
        return int(self._words[_CLOCK])

    @property
    def free_blocks(self) -> int:
        """Blocks that are free."""
        return int(self._words[_FREE])

    @property
    def used_bytes(self) -> int:
        """Memory that entries take."""
        return (self.num_blocks - self.free_blocks) * self._block_bytes

    @property
    def residents(self) -> NDArray[np.int64]:
        """Records that are held, int64 [n]."""
        return np.flatnonzero(self._places)

    def get(self, index: int) -> NDArray[np.uint8] | None:
        """A copy of the entry of a record, uint8 [size_bytes]; None: there is none."""
        now = self._words[_CLOCK] + 1
        self._words[_CLOCK] = now
        before, self._stamps[index] = self._stamps[index], now
        entry = self._copied(index)
        noted = self._noted
        noted[0] += 1
        noted[1] += entry is None and 0 < before and now - before <= 2 * self._count
        if noted[0] >= _NOTED_AT_ONCE:
            self._noted = [0, 0]
            with self._changing():
                self._policy.note(self, *noted)
        return entry

    def _copied(self, index: int) -> NDArray[np.uint8] | None:
        place = self._table[index]
        if not place:
            return None
        block = (place & 0xFFFFFFFF) - 1
        word = block * self._block_bytes // 8
        size, number = self._prefixes[word], self._prefixes[word + 1]
        blocks = [block]
        while len(blocks) * self._block_bytes < _PREFIX.size + size:
            block = self._next[block]
            if not 0 <= block < self.num_blocks or len(blocks) >= self.num_blocks:
                return None  # another entry's chain by now
            blocks.append(block)
        if self._table[index] != place or number != index:
            return None
        copy = np.take(self._data, blocks, axis=0).reshape(-1)
        with self._lock.threads:  # no load of the copy is later than the one that judges it
            pass
        if self._table[index] != place:
            return None
        return copy[_PREFIX.size : _PREFIX.size + size]

    def put(self, index: int, entry: Entry) -> bool:
        """Keep an entry, if room is made for it; whether it was admitted."""
        length = -(-(_PREFIX.size + entry.size_bytes) // self._block_bytes)
        if length > self.num_blocks // 2:
            return False
        with self._changing():
            if self._table[index] or not self._policy.make_room(self, length):
                return False
            blocks = self._take(length)
        try:
            self._write(blocks, [_PREFIX.pack(entry.size_bytes, index), *entry.parts])
        except BaseException as error:
            with self._changing():
                self._release(blocks)
            if isinstance(error, OSError):  # the system has no memory left, whatever the limit says
                return False
            raise
        with self._changing():
            if self._table[index]:  # another process was faster
                self._release(blocks)
                return False
            version = (self._words[_VERSION] + 1) % _MOST_VERSIONS
            self._words[_VERSION] = version
            self._table[index] = version << 32 | int(blocks[0]) + 1
            self._writers[blocks] = 0
        return True

    def _write(self, blocks: NDArray[np.int64], parts: list[Buffer]) -> None:
        """Write parts one behind the other to blocks, a run of neighbours at a time."""
        runs = np.split(blocks, np.flatnonzero(np.diff(blocks) != 1) + 1)
        if len(runs) > 1:
            parts = [b"".join(parts)]
        left = memoryview(parts[0])
        for run in runs:
            at = self._data_at + int(run[0]) * self._block_bytes
            if len(runs) > 1:
                room = run.size * self._block_bytes
                parts, left = [left[:room]], left[room:]
            write_parts(self._area.descriptor, parts, sum(map(len, parts)), at)

    def evict(self, records: NDArray[np.int64]) -> NDArray[np.int64]:
        """Drop entries; under the lock. Returns their blocks, int64 [n], which are free now."""
        heads = (self._places[records] & 0xFFFFFFFF) - 1
        self._places[records] = 0
        blocks = self._reached(heads)
        self._release(blocks)
        return blocks

    def give_back(self, blocks: NDArray[np.int64]) -> None:
        """Return the memory of free blocks to the system."""
        blocks = np.sort(blocks)
        for run in np.split(blocks, np.flatnonzero(np.diff(blocks) > 1) + 1):
            if run.size:
                start = self._data_at + int(run[0]) * self._block_bytes
                self._area.give_back(start, run.size * self._block_bytes)

    def reclaim(self) -> None:
        """Free the blocks of writers that were killed; under the lock."""
        if self._writers.any():
            self._rebuild()

    def _take(self, length: int) -> NDArray[np.int64]:
        end = self._words[_FREE]
        blocks = self._free[end - length : end][::-1].astype(np.int64)
        self._words[_FREE] = end - length
        self._writers[blocks] = os.getpid()
        self._chain[blocks[:-1]] = blocks[1:]
        self._chain[blocks[-1]] = -1
        return blocks

    def _release(self, blocks: NDArray[np.int64]) -> None:
        end = self._words[_FREE]
        self._writers[blocks] = 0
        self._free[end : end + blocks.size] = blocks
        self._words[_FREE] = end + blocks.size

    def _reached(self, heads: NDArray[np.int64]) -> NDArray[np.int64]:
        """All blocks of the chains that begin at `heads`."""
        found = []
        while heads.size:
            found.append(heads)
            heads = self._chain[heads].astype(np.int64)
            heads = heads[heads >= 0]
        return np.concatenate(found) if found else np.empty(0, np.int64)

    def _rebuild(self) -> None:
        """Make the list of free blocks from what is published, and what living writers have."""
        pids = np.unique(self._writers[self._writers > 0])
        alive = [pid for pid in pids.tolist() if is_alive(pid)]
        is_taken = np.isin(self._writers, alive)
        places = self._places[self._places != 0]
        is_taken[self._reached((places & 0xFFFFFFFF) - 1)] = True
        self._writers[~np.isin(self._writers, alive)] = 0
        free = np.flatnonzero(~is_taken)
        self._free[: free.size] = free
        self._words[_FREE] = free.size

    @contextmanager
    def _changing(self) -> Iterator[None]:
        with self._lock:
            if self._words[_IS_DIRTY]:
                self._rebuild()
            self._words[_IS_DIRTY] = 1
            yield
            self._words[_IS_DIRTY] = 0

    def __getstate__(self) -> dict[str, Any]:
        names = ("_count", "_block_bytes", "_policy", "num_blocks", "_area")
        return {name: vars(self)[name] for name in names}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        self._attach(state["_area"])
