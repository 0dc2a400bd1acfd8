"""Memory that threads write batches to, used again when no array views it."""

from __future__ import annotations

import mmap
import weakref
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from functools import cache
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from penstock.pipeline.loader.device.accelerator import PageLock

_LEAST_BYTES = 4 << 20
_MOST_FREE = 8
_BLOCK_BYTES = 31 << 20


class BatchMemory:
    """Blocks of memory, each of which is lent to one batch at a time.

    The C library keeps such large blocks in a heap for each thread, where blocks of other sizes
    lie between them: memory grows from epoch to epoch. Fresh from the system, on the other hand,
    a batch of 19 MB costs 3 ms of page faults. Here as many blocks stay as batches are alive at
    once, and eight more.

    Called from several threads.
    """

    def __init__(self) -> None:
        self._free: deque[mmap.mmap] = deque(maxlen=_MOST_FREE)
        self._lent: dict[int, tuple[weakref.ref[NDArray[np.uint8]], mmap.mmap]] = {}
        # Views end in any thread and between any two instructions. All that happens there is
        # this deque's append: Python code would need a lock, and could swallow a Ctrl-C.
        self._ended: deque[weakref.ref[NDArray[np.uint8]]] = deque()
        self._map: Callable[..., mmap.mmap] = mmap.mmap

    def page_lock(self, lock: PageLock) -> None:
        """Page-lock all blocks that are made from now on."""
        self.release()
        self._map = lock.map

    def allocate(self, size_bytes: int) -> NDArray[np.uint8]:
        """Writable memory, uint8 [size_bytes]; it is lent again when it and its views are gone.

        Tensors made of it keep it alive, and so do arrays made of these, and their rows.

        Raises:
            MemoryError: The system has none.
        """
        if size_bytes < _LEAST_BYTES:  # there the C library does well
            return np.empty(max(size_bytes, 1), np.uint8)
        block = self._take(size_bytes)
        if block is None:
            block = self._fresh(size_bytes)
        # Views know the array that they were made of first, so that lives as long as one of them.
        array = np.frombuffer(block, np.uint8, size_bytes)
        ref = weakref.ref(array, self._ended.append)
        self._lent[id(ref)] = ref, block
        return array

    def release(self) -> None:
        """Give back what is free; what is lent goes to the system when its views are gone."""
        self._collect()
        self._lent.clear()
        self._free.clear()

    def _collect(self) -> None:
        """Take back the blocks whose views are gone."""
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

    def _fresh(self, size_bytes: int) -> mmap.mmap:
        try:
            block = self._map(-1, size_bytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        except OSError as error:
            raise MemoryError(
                f"loader: no memory for the {size_bytes / 1e6:,.0f} MB of a batch's images "
                f"({error.strerror}); lower loader.batch_size, loader.prefetch_factor or "
                "loader.num_workers"
            ) from error
        with suppress(OSError):  # a kernel without large pages
            block.madvise(mmap.MADV_HUGEPAGE)
        return block


@cache
def keep_freed_memory() -> None:
    """Let blocks of up to 31 MB be used again after they are freed, rather than given back.

    Memory that is fresh from the system comes page by page, each with a fault: for a batch of
    1.5 MB that costs more than filling it, 1.9 ms in place of 0.7 ms for a batch of 512 small
    images that is taken, cropped and flipped. The C library of GNU takes blocks beyond a limit
    straight from the system and gives them straight back, and raises that limit to the largest
    block that was ever freed, up to 32 MB (mallopt(3), M_MMAP_THRESHOLD). So one block is asked
    for and freed, untouched; with other libraries that does nothing. At most twice its size
    stays with the process.
    """
    np.empty(_BLOCK_BYTES, np.uint8)
