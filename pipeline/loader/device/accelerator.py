"""The accelerator, by torch's names for it: streams, events and page-locked memory."""

from __future__ import annotations

import logging
import mmap
import os
import sys
from contextlib import suppress
from typing import Any
from weakref import WeakValueDictionary

import torch

_logger = logging.getLogger(__name__)
_AT_ONCE = ("cpu", "meta", "mps")
"""Devices without streams of their own: a copy is done when the call returns."""


class Accelerator:
    """A device that computes beside the host, in streams.

    Attributes:
        device: The device, with its index; the current one of its kind if none was given.
    """

    def __init__(self, device: torch.device) -> None:
        index = device.index
        if index is None:
            index = torch.accelerator.current_device_index()
        self.device = torch.device(device.type, index)

    @classmethod
    def of(cls, device: torch.device) -> Accelerator | None:
        """Return the accelerator of a device; None for the CPU and the like."""
        return None if device.type in _AT_ONCE else cls(device)

    def stream(self) -> Any:
        """Make a stream."""
        return torch.Stream(device=self.device)

    def current_stream(self) -> Any:
        """Return the stream that the calling thread computes in."""
        return torch.accelerator.current_stream(self.device)

    def event(self) -> Any:
        """Make an event that tells time."""
        return torch.Event(device=self.device, enable_timing=True)

    def empty(self, size_bytes: int) -> torch.Tensor:
        """Allocate device memory, uint8 [size_bytes], for the current stream."""
        return torch.empty(size_bytes, dtype=torch.uint8, device=self.device)

    def pinned(self, size_bytes: int) -> torch.Tensor:
        """Allocate page-locked memory of torch's own, uint8 [size_bytes]."""
        return torch.empty(size_bytes, dtype=torch.uint8, pin_memory=True)

    def register(self, address: int, size_bytes: int) -> bool:
        """Page-lock memory of this process; return whether that succeeded."""
        if self.device.type != "cuda":
            return False
        runtime: Any = torch.cuda.cudart()
        with torch.cuda.device(self.device):
            failed = int(runtime.cudaHostRegister(address, size_bytes, 0))
            if failed:
                with suppress(RuntimeError):  # the next call reports the error, and clears it
                    torch.zeros(1, device=self.device)
        return not failed

    def unregister(self, address: int) -> None:
        """Take the page lock off memory that was registered."""
        runtime: Any = torch.cuda.cudart()
        runtime.cudaHostUnregister(address)


class PageLock:
    """Maps memory that an accelerator reads directly.

    If page-locking fails, memory is still mapped, and batches are copied from it through
    page-locked memory of torch's.

    Attributes:
        device: Device of the accelerator that reads the memory.
    """

    def __init__(self, accelerator: Accelerator) -> None:
        self.device = accelerator.device
        self._accelerator = accelerator
        self._maps: WeakValueDictionary[int, LockedMap] = WeakValueDictionary()
        self._has_failed = False

    def map(self, descriptor: int, size_bytes: int, **options: Any) -> mmap.mmap:
        """Map memory as `mmap.mmap` does, and page-lock it until its last view is gone."""
        mapped = LockedMap(descriptor, size_bytes, **options)
        if not self._has_failed:
            mapped.lock(self._accelerator)
        if mapped.address:
            self._maps[mapped.address] = mapped
        elif not self._has_failed:
            self._has_failed = True
            _logger.info("loader: memory is not page-locked in place; batches are copied once more")
        return mapped

    @property
    def size_bytes(self) -> int:
        """Bytes that are page-locked."""
        return sum(map(len, self._live()))

    def has(self, address: int) -> bool:
        """Whether page-locked memory contains an address."""
        return any(each.address <= address < each.address + len(each) for each in self._live())

    def _live(self) -> list[LockedMap]:
        """Return the maps that are viewed, while other threads make some."""
        return [mapped for ref in self._maps.valuerefs() if (mapped := ref()) is not None]


class LockedMap(mmap.mmap):
    """Mapped memory, page-locked until the last view of it is gone.

    Attributes:
        address: Where it begins; 0 while it is not page-locked.
    """

    address = 0

    def lock(self, accelerator: Accelerator) -> None:
        """Page-lock the memory, if that is possible."""
        address = torch.frombuffer(self, dtype=torch.uint8).data_ptr()
        if accelerator.register(address, len(self)):
            self.address, self._accelerator, self._pid = address, accelerator, os.getpid()

    def __del__(self) -> None:
        if self.address and not sys.is_finalizing() and os.getpid() == self._pid:
            self._accelerator.unregister(self.address)
