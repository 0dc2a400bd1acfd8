"""Slots of shared memory: written by a worker process, viewed by the consumer's tensors."""

from __future__ import annotations

import logging
import mmap
import os
import weakref
from collections import deque
from itertools import count
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from pipeline.loader.host_memory import Fence, HostMemory

_logger = logging.getLogger(__name__)

_GRAIN_BYTES = 2 << 20
_MOST_FENCED = 8
"""Slots that wait for the device; a program that is further ahead of it is held up."""


class Slot:
    """One anonymous file in memory, known by its descriptor.

    It has no name and no place in /dev/shm: nothing has to be removed, no limit of a container
    holds, and it is gone with the last process that has it. Only the worker that writes a slot
    makes it larger; pages that were never written take no memory.

    Args:
        number: Its number, which never stands for another one.
        fd: The descriptor.
        locks: Page-locks what is mapped, once for as long as it is; None: nobody does.

    Attributes:
        number: Its number.
        fd: The descriptor; -1 when closed.
    """

    def __init__(self, number: int, *, fd: int, locks: HostMemory | None = None) -> None:
        self.number = number
        self.fd = fd
        self._locks = locks
        self._memory: mmap.mmap | None = None

    def memory(self, size_bytes: int) -> mmap.mmap:
        """A shared mapping of at least `size_bytes`; the file grows if it has to."""
        if self._memory is None or len(self._memory) < size_bytes:
            there_bytes = os.fstat(self.fd).st_size
            if there_bytes < size_bytes:
                there_bytes = -(-(size_bytes + size_bytes // 8) // _GRAIN_BYTES) * _GRAIN_BYTES
                os.ftruncate(self.fd, there_bytes)
            # The mapping before lives on while somebody views it.
            if self._locks is None:
                self._memory = mmap.mmap(self.fd, there_bytes)
            else:
                self._memory = _LockedMapping(self.fd, there_bytes)
                self._memory.lock(self._locks)
        return self._memory

    def close(self) -> None:
        """Give back the descriptor; what is mapped stays while it is viewed. Once is enough."""
        fd, self.fd, self._memory = self.fd, -1, None
        if fd >= 0:
            os.close(fd)


class _LockedMapping(mmap.mmap):
    """A mapping that is page-locked until it is unmapped, whoever viewed it last."""

    _locks: HostMemory | None = None
    _address = 0

    def lock(self, locks: HostMemory) -> None:
        address = address_of(self)
        if locks.register(address, len(self)):
            self._locks, self._address = locks, address

    def __del__(self) -> None:
        # A weak reference would be called after the unmapping.
        if self._locks is not None:
            self._locks.unregister(self._address)


def address_of(memory: mmap.mmap) -> int:
    """Where a mapping begins in this process."""
    return int(np.frombuffer(memory, np.uint8).ctypes.data)


class SlotPool:
    """The ring: slots that are used again when no tensor views them any more.

    Args:
        held: Batches that the consumer may hold in their slots. Of any further one that it
            keeps, the bytes are copied into memory of their own, and its slot is free at once:
            descriptors are few, and people do keep whole epochs.
        locks: Page-locks the slots for the consumer, who then copies from them while it goes on:
            a slot whose views are gone is used again only when the device has come past what
            the consumer had it do until then.
    """

    def __init__(self, held: int, *, locks: HostMemory | None = None) -> None:
        self._held = held
        self._locks = locks
        self._numbers = count()
        self._closed = False
        self._said = False
        self._free: deque[Slot] = deque()
        self._fenced: deque[tuple[Fence, Slot]] = deque()
        self._leased: dict[int, tuple[weakref.ref[memoryview], Slot]] = {}
        # Views end in any thread and between any two instructions. All that happens there is
        # this deque's append: Python code would need a lock, and could swallow a Ctrl-C.
        self._ended: deque[weakref.ref[memoryview]] = deque()

    def take(self) -> Slot:
        """A slot that nobody views: the one freed last, whose pages are warm, or a new one."""
        if self._locks is None:  # else that is for the thread that copies from the slots
            self._collect()
        try:
            return self._free.pop()
        except IndexError:
            number = next(self._numbers)
            fd = os.memfd_create(f"penstock-{number}", os.MFD_CLOEXEC)
            return Slot(number, fd=fd, locks=self._locks)

    def lease(self, slot: Slot, size_bytes: int) -> memoryview:
        """The slot's bytes for one batch; the slot comes back when the view is gone.

        Tensors made of the view keep it alive, and so does whatever is made of them. Called in
        the consumer's thread.
        """
        self._collect()
        if len(self._leased) >= self._held:
            if not self._said:
                self._said = True
                _logger.info(
                    "loader: %d batches are kept, so each further one is copied out of its slot",
                    self._held,
                )
            return self._copied_out(slot, size_bytes)
        view = memoryview(slot.memory(size_bytes))
        ref = weakref.ref(view, self._ended.append)
        self._leased[id(ref)] = ref, slot
        return view

    def _copied_out(self, slot: Slot, size_bytes: int) -> memoryview:
        copy = np.frombuffer(slot.memory(size_bytes), np.uint8, size_bytes).copy()
        self.give_back(slot)
        return copy.data

    def _collect(self) -> None:
        """Take back the slots whose views are gone."""
        while self._ended:
            try:
                ref = self._ended.popleft()
            except IndexError:  # another thread took it
                break
            lease = self._leased.pop(id(ref), None)
            if lease is None:
                continue
            if self._locks is None:
                self.give_back(lease[1])
            else:
                self._fenced.append((self._locks.fence(), lease[1]))
        while self._fenced:
            fence, slot = self._fenced[0]
            if len(self._fenced) > _MOST_FENCED:
                fence.synchronize()
            elif not fence.query():
                break
            self._fenced.popleft()
            self.give_back(slot)

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
        while self._fenced:
            self._fenced.popleft()[1].close()
        while self._free:
            self._free.pop().close()
