"""Memory for the batches of threads: used again once nobody views it, given back when spare."""

from __future__ import annotations

import mmap
import sys
import time
import weakref
from collections import deque
from contextlib import suppress

import numpy as np
from numpy.typing import NDArray

_LEAST_BYTES = 4 << 20
_WAITED_FOR_BYTES = 8 << 20
_KEPT_BYTES = 32 << 20
_GRACE_S = 0.001
_SPARE_S = 0.2


class Blocks:
    """Blocks of memory, each of which is lent to one batch at a time.

    The C library keeps such large blocks in a heap for each thread, where those of other sizes
    lie between them: memory grows from epoch to epoch. Fresh from the system, on the other hand,
    a batch of 19 MB costs 3 ms of page faults. Here as many blocks stay as batches are alive at
    once; one that was spare all through `_SPARE_S` goes, so that such faults stay rare.

    Called from several threads.
    """

    def __init__(self) -> None:
        self._free: deque[mmap.mmap] = deque()
        self._lent: dict[int, tuple[weakref.ref[NDArray[np.uint8]], mmap.mmap]] = {}
        # Views end in any thread and between any two instructions. All that happens there is
        # this deque's append: Python code would need a lock, and could swallow a Ctrl-C.
        self._ended: deque[weakref.ref[NDArray[np.uint8]]] = deque()
        self._spare = sys.maxsize  # how many were free all the time since the last look
        self._looked_at = time.monotonic()

    def allocate(self, size_bytes: int) -> NDArray[np.uint8]:
        """Writable memory, uint8 [size_bytes]; it is lent again when it and its views are gone.

        Tensors made of it keep it alive, and so do arrays made of these, and their rows.

        Raises:
            MemoryError: The system has none.
        """
        if size_bytes < _LEAST_BYTES:  # there the C library does well
            return np.empty(max(size_bytes, 1), np.uint8)
        block = self._take(size_bytes)
        if block is None and self._lent and size_bytes >= _WAITED_FOR_BYTES:
            # Whoever is handed a batch lets go of the one before, as soon as it gets the
            # interpreter. To wait for that costs less than pages that are fresh.
            time.sleep(_GRACE_S)
            block = self._take(size_bytes)
        if block is None:
            block = _fresh(size_bytes)
        # Views know the array that they were made of first, so that lives as long as one of them.
        array = np.frombuffer(block, np.uint8, size_bytes)
        ref = weakref.ref(array, self._ended.append)
        self._lent[id(ref)] = ref, block
        self._give_back_spare()
        return array

    def release(self) -> None:
        """Give back what is free, but for 32 MB at most of small blocks, for the next run.

        What is lent goes to the system when its views are gone.
        """
        self._collect()
        self._lent.clear()
        kept_bytes = 0
        with suppress(IndexError):  # another thread took one
            for _ in range(len(self._free)):
                block = self._free.popleft()
                if len(block) < _WAITED_FOR_BYTES and kept_bytes + len(block) <= _KEPT_BYTES:
                    self._free.append(block)
                    kept_bytes += len(block)

    def _collect(self) -> None:
        """Take back the blocks that nobody views any more."""
        with suppress(IndexError):  # none is left, or another thread took it
            while True:
                _, block = self._lent.pop(id(self._ended.popleft()), (None, None))
                if block is not None:
                    self._free.append(block)

    def _take(self, size_bytes: int) -> mmap.mmap | None:
        """The block freed last, whose pages are warm; misfits go."""
        self._collect()
        with suppress(IndexError):
            while True:
                block = self._free.pop()
                if size_bytes <= len(block) <= 2 * size_bytes:
                    return block
        return None

    def _give_back_spare(self) -> None:
        """Give back the blocks that were free at every lending since the last look."""
        self._spare = min(self._spare, len(self._free))
        now = time.monotonic()
        if now - self._looked_at < _SPARE_S:
            return
        spare, self._spare, self._looked_at = self._spare, sys.maxsize, now
        with suppress(IndexError):  # another thread took one
            for _ in range(min(spare, len(self._free))):
                self._free.popleft()


def _fresh(size_bytes: int) -> mmap.mmap:
    try:
        block = mmap.mmap(-1, size_bytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    except OSError as error:
        raise MemoryError(
            f"loader: no memory for the {size_bytes / 1e6:,.0f} MB of a batch's images "
            f"({error.strerror}); lower loader.batch_size, loader.prefetch_factor or "
            "loader.num_workers"
        ) from error
    with suppress(OSError):  # a kernel without large pages
        block.madvise(mmap.MADV_HUGEPAGE)
    return block
