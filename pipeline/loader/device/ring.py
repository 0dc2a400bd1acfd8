"""The device ring: batches copied to buffers on an accelerator, in a stream of its own."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch

from penstock.core.sample import Batch
from penstock.pipeline.loader.arena import aligned
from penstock.pipeline.loader.contract import is_plain, mapped
from penstock.pipeline.loader.device.accelerator import Accelerator, PageLock

_SMALL_BYTES = 64 << 10
"""The host copies smaller tensors together, which costs less than a copy of their own."""
_POLL_S = 2e-4


@dataclass(eq=False, slots=True)
class Slot:
    """A buffer on the device, and the batch that is copied to it.

    Attributes:
        begun: Event: the copy begins; `filled`: it has ended; `freed`: the device has read it.
        buffer: Memory of the device, uint8.
        staging: Page-locked memory for tensors that the host copies, uint8.
        first: First byte in the buffer that is copied from `staging`; `stop` is behind the last.
        host: The batch in host memory, until its copy has ended.
        places: First byte in the buffer and tensor without gaps, by the id of a tensor.
        apart: Tensors that were copied on their own, by id: nested ones and the like.
    """

    begun: Any
    filled: Any
    freed: Any
    buffer: torch.Tensor | None = None
    staging: torch.Tensor | None = None
    first: int = 0
    stop: int = 0
    host: Any = None
    places: dict[int, tuple[int, torch.Tensor]] = field(default_factory=dict)
    apart: dict[int, torch.Tensor] = field(default_factory=dict)


class Ring:
    """Copies batches to a ring of device buffers, in a stream of its own.

    Copy n waits on the device until batch n - depth was read, and on the host until copy
    n - depth has ended: `depth` bounds the memory, however late the device is.

    `ended` gets the seconds of each copy that has ended, by the device's clock.
    """

    def __init__(
        self,
        accelerator: Accelerator,
        lock: PageLock,
        *,
        depth: int,
        ended: Callable[[float], None],
    ) -> None:
        self._ended = ended
        self._accelerator = accelerator
        self._lock = lock
        self._stream = accelerator.stream()
        event = accelerator.event
        self._slots = deque(Slot(event(), event(), event()) for _ in range(depth))

    def send(self, host: Any) -> Slot:
        """Issue the copies of a batch: one a large tensor, and one of all others together."""
        slot = self._slots[0]
        self._slots.rotate(-1)
        self._retire(slot, wait=True)
        tensors = _tensors_of(host)
        pieces = self._lay_out(slot, [each for each in tensors if is_plain(each)])
        size_bytes = slot.stop
        with self._stream:
            self._stream.wait_event(slot.freed)
            if slot.buffer is None or slot.buffer.numel() < size_bytes:
                slot.buffer = self._accelerator.empty(aligned(size_bytes + size_bytes // 8))
            slot.begun.record(self._stream)
            for start, piece in pieces:
                slot.buffer[start : start + piece.numel()].copy_(piece, non_blocking=True)
            slot.apart = {
                id(each): each.to(self._accelerator.device, non_blocking=True)
                for each in tensors
                if not is_plain(each)
            }
            slot.filled.record(self._stream)
        slot.host = host
        return slot

    def deliver(self, slot: Slot, change: Callable[[Any], Batch]) -> Batch:
        """Return a batch on the device, changed there, in memory of the current stream."""
        compute = self._accelerator.current_stream()
        compute.wait_event(slot.filled)
        buffer, first = slot.buffer, slot.first
        assert buffer is not None
        staged = buffer[first : slot.stop].clone()

        def on_device(value: Any) -> Any:
            if (place := slot.places.get(id(value))) is not None:
                start, laid = place
                memory = buffer[start:] if start < first else staged[start - first :]
                flat = memory[: laid.nbytes].view(laid.dtype)
                return flat.as_strided(laid.shape, laid.stride())
            if (apart := slot.apart.get(id(value))) is not None:
                return apart.clone()
            is_empty = isinstance(value, torch.Tensor)
            return value.to(self._accelerator.device) if is_empty else value

        batch = mapped(change(mapped(slot.host, on_device)), lambda value: _owned(value, buffer))
        slot.freed.record(compute)
        return batch

    def retire(self, *, wait: bool = False) -> None:
        """Let go of the batches in host memory whose copies have ended."""
        for slot in self._slots:
            self._retire(slot, wait=wait)

    def _retire(self, slot: Slot, *, wait: bool) -> None:
        if slot.host is None:
            return
        while not slot.filled.query():
            if not wait:
                return
            time.sleep(_POLL_S)  # an event of torch's waits by taking a core
        slot.host = None
        slot.places.clear()
        self._ended(slot.begun.elapsed_time(slot.filled) / 1000)

    def _lay_out(self, slot: Slot, tensors: list[torch.Tensor]) -> list[tuple[int, torch.Tensor]]:
        """Give each tensor a place in the buffer; return the bytes to copy, and where they go."""
        pieces, beside, end = [], [], 0
        for tensor in tensors:
            laid = _without_gaps(tensor)
            if laid.nbytes <= _SMALL_BYTES or not self._lock.has(laid.data_ptr()):
                beside.append((tensor, laid))
                continue
            slot.places[id(tensor)] = end, laid
            pieces.append((end, _bytes_of(laid)))
            end += aligned(laid.nbytes)
        start = end
        for tensor, laid in beside:
            slot.places[id(tensor)] = end, laid
            end += aligned(laid.nbytes)
        slot.first, slot.stop = start, end
        if beside:
            if slot.staging is None or slot.staging.numel() < end - start:
                slot.staging = self._accelerator.pinned(2 * (end - start))
            # NumPy copies in this thread; torch would start threads of its own.
            staging = slot.staging.numpy()
            for tensor, laid in beside:
                at = slot.places[id(tensor)][0] - start
                staging[at : at + laid.nbytes] = _bytes_of(laid).numpy()
            pieces.append((start, slot.staging[: end - start]))
        return pieces


def _without_gaps(tensor: torch.Tensor) -> torch.Tensor:
    """Return a tensor whose elements fill their memory, in any order of dimensions."""
    extent = 1 + sum((n - 1) * step for n, step in zip(tensor.shape, tensor.stride(), strict=True))
    return tensor if extent == tensor.numel() else tensor.contiguous()


def _bytes_of(tensor: torch.Tensor) -> torch.Tensor:
    """Return the bytes of a tensor without gaps, uint8 [nbytes]."""
    return tensor.as_strided((tensor.numel(),), (1,)).view(torch.uint8)


def _owned(value: Any, buffer: torch.Tensor) -> Any:
    """Return a value in memory of its own."""
    if not isinstance(value, torch.Tensor):
        return value
    # Tensors of other kinds do not say what they view.
    if type(value) is torch.Tensor and value.layout is torch.strided:
        if value.untyped_storage().data_ptr() != buffer.untyped_storage().data_ptr():
            return value
    return value.clone()


def _tensors_of(batch: Any) -> list[torch.Tensor]:
    """Return all tensors with elements."""
    tensors: list[torch.Tensor] = []

    def add(value: Any) -> None:
        if isinstance(value, torch.Tensor) and (value.is_nested or value.numel()):
            tensors.append(value)

    mapped(batch, add)
    return tensors
