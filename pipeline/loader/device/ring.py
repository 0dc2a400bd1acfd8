"""The device ring: batches copied to buffers on an accelerator, in a stream of its own."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from penstock.core.sample import Batch
from penstock.pipeline.loader.contract import is_plain, mapped
from penstock.pipeline.loader.device.accelerator import Accelerator, LockedMap, PageLock

_ALIGNMENT = 64
_SMALL_BYTES = 64 << 10
"""Fewer bytes cost less to copy along than a copy of their own."""
_POLL_S = 2e-4


@dataclass(eq=False, slots=True)
class Slot:
    """A buffer on the device, and the batch that is copied to it.

    Attributes:
        begun: Event: the copy begins.
        filled: Event: the copy has ended.
        freed: Event: the device has read the buffer.
        buffer: Memory of the device, uint8.
        staging: Page-locked memory for tensors outside of page-locked memory, uint8.
        host: The batch in host memory, until its copy has ended.
        places: Place in the buffer of each tensor, by its id.
        apart: Tensors that were copied on their own, by id: nested ones and the like.
    """

    begun: Any
    filled: Any
    freed: Any
    buffer: torch.Tensor | None = None
    staging: torch.Tensor | None = None
    host: Any = None
    places: dict[int, _Place] = field(default_factory=dict)
    apart: dict[int, torch.Tensor] = field(default_factory=dict)


class Ring:
    """Copies batches to a ring of device buffers, in a stream of its own.

    Copy n waits on the device until batch n - depth was read, and on the host until copy
    n - depth has ended: `depth` bounds the memory, however late the device is.

    Args:
        accelerator: The device.
        lock: The page-locked memory of batches.
        depth: Number of buffers.
        ended: Called with the seconds of each copy that has ended, by the device's clock.
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
        """Issue the copy of a batch: one for each piece of page-locked memory."""
        slot = self._slots[0]
        self._slots.rotate(-1)
        self._retire(slot, wait=True)
        tensors = _tensors_of(host)
        pieces, size_bytes = self._lay_out(slot, [each for each in tensors if is_plain(each)])
        with self._stream:
            self._stream.wait_event(slot.freed)
            if slot.buffer is None or slot.buffer.numel() < size_bytes:
                slot.buffer = self._accelerator.empty(_aligned(size_bytes + size_bytes // 8))
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
        buffer = slot.buffer
        assert buffer is not None

        def on_device(value: Any) -> Any:
            if (place := slot.places.get(id(value))) is not None:
                return place.view(buffer)
            if (apart := slot.apart.get(id(value))) is not None:
                return apart.clone()
            is_empty = isinstance(value, torch.Tensor)
            return value.to(self._accelerator.device) if is_empty else value

        batch = _owned(change(mapped(slot.host, on_device)), buffer)
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

    def _lay_out(
        self, slot: Slot, tensors: Sequence[torch.Tensor]
    ) -> tuple[list[tuple[int, torch.Tensor]], int]:
        """Give each tensor a place in the buffer; return the pieces to copy, and their size."""
        inside: dict[int, tuple[LockedMap, list[_Span]]] = {}
        pieces, beside, end = [], [], 0
        for tensor in tensors:
            span = _Span.of(tensor)
            memory = self._lock.find(span.start)
            if memory is not None and not span.start % tensor.itemsize:
                inside.setdefault(memory.address, (memory, []))[1].append(span)
            elif span.size_bytes > _SMALL_BYTES and tensor.is_pinned():
                pieces.append((end, span.bytes))
                slot.places[id(tensor)] = _Place(end, span)
                end += _aligned(span.size_bytes)
            else:
                beside.append(span)
        for address, (memory, spans) in inside.items():
            for first, stop, run in _runs(spans, address):
                for span in run:
                    slot.places[id(span.tensor)] = _Place(end + span.start - address - first, span)
                piece = torch.frombuffer(
                    memory, dtype=torch.uint8, count=stop - first, offset=first
                )
                pieces.append((end, piece))
                end += _aligned(stop - first)
        start = end
        for span in beside:
            slot.places[id(span.tensor)] = _Place(end, span)
            end += _aligned(span.size_bytes)
        if beside:
            if slot.staging is None or slot.staging.numel() < end - start:
                slot.staging = self._accelerator.pinned(2 * (end - start))
            staging = slot.staging.numpy()
            for span in beside:
                at = slot.places[id(span.tensor)].start - start
                staging[at : at + span.size_bytes] = span.bytes.numpy()
            pieces.append((start, slot.staging[: end - start]))
        return pieces, end


class _Span:
    """The bytes of a tensor in memory.

    Args:
        tensor: The tensor, as it will be looked up.
        laid: The same, or a copy whose bytes lie close together.
    """

    def __init__(self, tensor: torch.Tensor, laid: torch.Tensor) -> None:
        self.tensor, self._laid = tensor, laid
        self.strides = laid.stride()
        self.start = laid.data_ptr()
        extent = 1 + sum((n - 1) * step for n, step in zip(laid.shape, self.strides, strict=True))
        self.is_close = extent <= laid.numel()
        self.size_bytes = extent * laid.itemsize

    @property
    def bytes(self) -> torch.Tensor:
        """The bytes, uint8 [size_bytes]."""
        extent = self.size_bytes // self._laid.itemsize
        return self._laid.as_strided((extent,), (1,)).view(torch.uint8)

    @classmethod
    def of(cls, tensor: torch.Tensor) -> _Span:
        """Return the span of a tensor; of its copy, if the bytes of others lie between its own."""
        span = cls(tensor, tensor)
        return span if span.is_close else cls(tensor, tensor.contiguous())


@dataclass(frozen=True, slots=True)
class _Place:
    """First byte of a span in a buffer."""

    start: int
    span: _Span

    def view(self, buffer: torch.Tensor) -> torch.Tensor:
        """Return the tensor in a buffer, whose size is aligned."""
        tensor = self.span.tensor
        start = self.start // tensor.itemsize
        return buffer.view(tensor.dtype).as_strided(tensor.shape, self.span.strides, start)


def _runs(spans: Sequence[_Span], address: int) -> Iterator[tuple[int, int, list[_Span]]]:
    """Yield groups of spans that lie close together: first byte from an address, end, spans."""
    first = stop = 0
    run: list[_Span] = []
    for span in sorted(spans, key=lambda span: span.start):
        start = span.start - address
        if run and start - stop > _SMALL_BYTES:
            yield first, stop, run
            run = []
        if not run:
            first = stop = start - start % _ALIGNMENT
        stop = max(stop, start + span.size_bytes)
        run.append(span)
    if run:
        yield first, stop, run


def _owned(batch: Batch, buffer: torch.Tensor) -> Batch:
    """Return a batch in memory of its own, small tensors together."""
    storage = buffer.untyped_storage().data_ptr()
    own: dict[int, torch.Tensor] = {}
    small: list[_Span] = []
    for tensor in _tensors_of(batch):
        is_strided = type(tensor) is torch.Tensor and tensor.layout is torch.strided
        # Tensors of other kinds do not say what they view.
        if is_strided and tensor.untyped_storage().data_ptr() != storage:
            continue
        span = _Span(tensor, tensor) if is_strided else None
        if span is not None and span.is_close and span.size_bytes <= _SMALL_BYTES:
            small.append(span)
        else:
            own[id(tensor)] = tensor.clone()
    for first, stop, run in _runs(small, buffer.data_ptr()):
        copy = buffer[first : _aligned(stop)].clone()
        for span in run:
            place = _Place(span.start - buffer.data_ptr() - first, span)
            own[id(span.tensor)] = place.view(copy)
    return mapped(batch, lambda value: own.get(id(value), value))


def _tensors_of(batch: Any) -> list[torch.Tensor]:
    """Return all tensors with elements."""
    tensors: list[torch.Tensor] = []

    def add(value: Any) -> None:
        if isinstance(value, torch.Tensor) and (value.is_nested or value.numel()):
            tensors.append(value)

    mapped(batch, add)
    return tensors


def _aligned(size_bytes: int) -> int:
    return -(-size_bytes // _ALIGNMENT) * _ALIGNMENT
