"""Slots of shared memory: written by a worker process, viewed by the consumer's tensors."""

from __future__ import annotations

import logging
import mmap
import os
import weakref
from collections import deque
from itertools import count

import numpy as np

_logger = logging.getLogger(__name__)

_GRAIN_BYTES = 2 << 20


class Slot:
    """One anonymous file in memory, known by its descriptor.

    It has no name and no place in /dev/shm: nothing has to be removed, no limit of a container
    holds, and it is gone with the last process that has it. Only the worker that writes a slot
    makes it larger; pages that were never written take no memory.

    Attributes:
        number: Its number, which never stands for another one.
        fd: The descriptor; -1 when closed.
    """

    def __init__(self, number: int, *, fd: int) -> None:
        self.number = number
        self.fd = fd
        self._memory: mmap.mmap | None = None

    def memory(self, size_bytes: int) -> mmap.mmap:
        """A shared mapping of at least `size_bytes`; the file grows if it has to."""
        if self._memory is None or len(self._memory) < size_bytes:
            there_bytes = os.fstat(self.fd).st_size
            if there_bytes < size_bytes:
                there_bytes = -(-(size_bytes + size_bytes // 8) // _GRAIN_BYTES) * _GRAIN_BYTES
                os.ftruncate(self.fd, there_bytes)
            # The mapping before lives on while somebody views it.
            self._memory = mmap.mmap(self.fd, there_bytes)
        return self._memory

    def close(self) -> None:
        """Give back the descriptor; what is mapped stays while it is viewed. Once is enough."""
        fd, self.fd, self._memory = self.fd, -1, None
        if fd >= 0:
            os.close(fd)


class SlotPool:
    """The ring: slots that are used again when no tensor views them any more.

    Args:
        held: Batches that the consumer may hold in their slots. Of any further one that it
            keeps, the bytes are copied into memory of their own, and its slot is free at once:
            descriptors are few, and people do keep whole epochs.
    """

    def __init__(self, held: int) -> None:
        self._held = held
        self._numbers = count()
        self._closed = False
        self._said = False
        self._free: deque[Slot] = deque()
        self._leased: dict[int, tuple[weakref.ref[memoryview], Slot]] = {}
        # Views end in any thread and between any two instructions. All that happens there is
        # this deque's append: Python code would need a lock, and could swallow a Ctrl-C.
        self._ended: deque[weakref.ref[memoryview]] = deque()

    def take(self) -> Slot:
        """A slot that nobody views: the one freed last, whose pages are warm, or a new one."""
        self._collect()
        try:
            return self._free.pop()
        except IndexError:
            number = next(self._numbers)
            return Slot(number, fd=os.memfd_create(f"penstock-{number}", os.MFD_CLOEXEC))

    def lease(self, slot: Slot, size_bytes: int) -> memoryview:
        """The slot's bytes for one batch; the slot comes back when the view is gone.

        Tensors made of the view keep it alive, and so does whatever is made of them.
        """
        self._collect()
        if len(self._leased) >= self._held:
            if not self._said:
                self._said = True
                _logger.info(
                    "loader: %d batches are kept, so each further one is copied out of its slot",
                    self._held,
                )
            copy = np.frombuffer(slot.memory(size_bytes), np.uint8, size_bytes).copy()
            self.give_back(slot)
            return copy.data
        view = memoryview(slot.memory(size_bytes))
        ref = weakref.ref(view, self._ended.append)
        self._leased[id(ref)] = ref, slot
        return view

    def _collect(self) -> None:
        """Take back the slots whose views are gone."""
        while self._ended:
            try:
                ref = self._ended.popleft()
            except IndexError:  # another thread took it
                return
            lease = self._leased.pop(id(ref), None)
            if lease is not None:
                self.give_back(lease[1])

    def give_back(self, slot: Slot) -> None:
        """Take back a slot that nobody views."""
        if self._closed:
            slot.close()
        else:
            self._free.append(slot)

    def close(self) -> None:
        """Give back all descriptors; batches that are kept have their memory until they go."""
        self._closed = True
        while self._leased:
            self._leased.popitem()[1][1].close()
        while self._free:
            self._free.pop().close()
