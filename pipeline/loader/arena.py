"""The arena: memory that batches are written to, and used again when no array views it.

Worker processes map the same memory: arrays travel as places in a slot of the arena, and everything
else of a batch as a small pickle.
"""

from __future__ import annotations

import io
import mmap
import os
import pickle
import sys
import tempfile
import weakref
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from penstock.pipeline.loader.contract import is_plain

if TYPE_CHECKING:
    import torch

    from penstock.pipeline.loader.device.accelerator import PageLock
    from penstock.pipeline.loader.settings import LoaderSettings

HELD_BY_CONSUMER = 3
"""Batches that the loop, the loader and a prefetcher hold without keeping any."""
_SLOT_BYTES = 1 << 34
_MOST_SLOTS = 256
_GRAIN_BYTES = 2 << 20
_ALIGNMENT = 64  # bytes; a cache line, and enough for every type and vector unit
_LEAST_BYTES = 4 << 20
_HEAP_BYTES = 31 << 20


class Slots:
    """Memory of numbered slots, mapped on first use; pages that were never written take no memory.

    Args:
        descriptor: File of which each slot is a part; -1: private memory.
    """

    def __init__(self, descriptor: int) -> None:
        self.descriptor = descriptor
        self._maps: dict[int, mmap.mmap] = {}
        self._map: Callable[..., mmap.mmap] = mmap.mmap

    def page_lock(self, lock: PageLock) -> None:
        """Page-lock all slots that are mapped from now on."""
        self._map = lock.map
        self._maps.clear()

    def memory(self, slot: int, size_bytes: int) -> NDArray[np.uint8]:
        """Return the beginning of a slot, uint8 [size_bytes], or raise MemoryError."""
        mapped = self._maps.get(slot)
        if mapped is None or len(mapped) < size_bytes:
            # The mapping before lives on while a view of it does.
            self._maps.pop(slot, None)
            del mapped
            length = -(-(size_bytes + size_bytes // 8) // _GRAIN_BYTES) * _GRAIN_BYTES
            mapped = self._maps[slot] = self._mapped(slot, length)
        return np.frombuffer(mapped, np.uint8, size_bytes)

    def _mapped(self, slot: int, length: int) -> mmap.mmap:
        with suppress(OSError):  # the system has none left
            if length <= _SLOT_BYTES and self.descriptor >= 0:
                return self._map(self.descriptor, length, offset=slot * _SLOT_BYTES)
            if length <= _SLOT_BYTES:
                mapped = self._map(-1, length, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
                with suppress(OSError):  # a kernel without large pages
                    mapped.madvise(mmap.MADV_HUGEPAGE)
                return mapped
        raise MemoryError(
            f"loader: no memory for the {length / 1e6:,.0f} MB of a batch; lower "
            f"loader.batch_size, loader.prefetch_factor or loader.num_workers"
        )

    def close(self) -> None:
        """Close the file; mapped memory stays while it is viewed. Safe to call twice."""
        descriptor, self.descriptor = self.descriptor, -1
        self._maps.clear()
        if descriptor >= 0:
            os.close(descriptor)


def slots_of(settings: LoaderSettings) -> int:
    """Return how many batches exist at once, unless the consumer keeps some."""
    return settings.workers * (settings.prefetch_factor + 1) + HELD_BY_CONSUMER


def _new_file() -> int:
    """Open a file without a name, whose memory is gone with the last process that has it open.

    A memfd does not count in /dev/shm, which containers keep small. On a machine without memfd a
    temporary file takes its place.
    """
    try:
        descriptor = os.memfd_create("penstock")
    except (AttributeError, OSError):  # a Python or a kernel without it
        with tempfile.TemporaryFile() as file:
            descriptor = os.dup(file.fileno())
    try:
        os.ftruncate(descriptor, _SLOT_BYTES * _MOST_SLOTS)
    except OSError as error:
        os.close(descriptor)
        raise ValueError(
            f"loader: no file of 4 TB, nearly all of it empty, for the batches of worker "
            f"processes: {error}; type ulimit -f unlimited before, or use loader=threads"
        ) from None
    return descriptor


class Arena:
    """Slots that hold a batch each, and are used again when no array views them any more.

    The C library would give such large blocks back to the system, and fresh pages cost 3 ms for a
    batch of 19 MB. While the consumer keeps batches in all slots, further batches do without one.
    """

    def __init__(self, slots: int, *, is_shared: bool = False) -> None:
        self.memory = Slots(_new_file() if is_shared else -1)
        self._count = min(slots, _MOST_SLOTS)
        self._free = [*reversed(range(self._count))]
        self._leased: dict[int, tuple[weakref.ref[NDArray[np.uint8]], int]] = {}
        # Views end in any thread and between any two instructions. All that happens there is
        # this deque's append: Python code would need a lock, and could swallow a Ctrl-C.
        self._ended: deque[weakref.ref[NDArray[np.uint8]]] = deque()
        _arenas.add(self)

    def take(self) -> int | None:
        """Take the slot freed last, whose pages are warm, or a new one; None if all are viewed."""
        with suppress(IndexError):  # no view has ended
            while True:
                ref = self._ended.popleft()
                self.give_back(self._leased.pop(id(ref), (ref, None))[1])
        with suppress(IndexError):
            return self._free.pop()
        return None

    def give_back(self, slot: int | None) -> None:
        """Take back a slot without views."""
        if slot is not None:
            self._free.append(slot)

    def lease(self, slot: int, size_bytes: int) -> NDArray[np.uint8]:
        """Return the memory of a batch; its slot comes back when all views of it are gone."""
        view = self.memory.memory(slot, size_bytes)
        ref = weakref.ref(view, self._ended.append)
        self._leased[id(ref)] = ref, slot
        return view

    def allocate(self, size_bytes: int) -> NDArray[np.uint8]:
        """Return memory for a batch that this process computes, uint8 [size_bytes]."""
        # The C library does well with small blocks.
        slot = self.take() if size_bytes >= _LEAST_BYTES else None
        return np.empty(size_bytes, np.uint8) if slot is None else self.lease(slot, size_bytes)

    def note_fork(self) -> None:
        """Never write again to memory that a forked process views."""
        count = min(self._count + len(self._leased), _MOST_SLOTS)
        self._free[:0] = range(self._count, count)
        self._count = count
        self._leased.clear()


_arenas: weakref.WeakSet[Arena] = weakref.WeakSet()


def _note_fork() -> None:
    for arena in list(_arenas):
        arena.note_fork()


os.register_at_fork(after_in_parent=_note_fork)


@cache
def keep_freed_memory() -> None:
    """Let blocks of up to 31 MB be used again after they are freed, rather than given back.

    The C library of GNU raises the limit from which it asks the system for each block to the
    largest block that was ever freed (mallopt(3), M_MMAP_THRESHOLD). A batch of 512 small images
    then takes 0.7 ms in place of 1.9 ms.
    """
    np.empty(_HEAP_BYTES, np.uint8)


@dataclass(frozen=True, slots=True)
class Packed:
    """A pickle, and the first byte and size of each array in a slot; or the arrays themselves."""

    body: bytes
    places: list[Any]
    size_bytes: int = 0


class Layout:
    """The memory of a slot that a batch is computed in; without a slot, arrays travel along."""

    def __init__(self, memory: Slots | None, slot: int | None) -> None:
        self._memory = memory
        self._slot = slot
        self._given: NDArray[np.uint8] | None = None

    def allocate(self, size_bytes: int) -> NDArray[np.uint8]:
        """Return the beginning of the slot; a second call takes it back from the first.

        A batch whose columns turn out to be damaged is made again, sample by sample.
        """
        if self._memory is None or self._slot is None:
            return np.empty(size_bytes, np.uint8)
        self._given = self._memory.memory(self._slot, size_bytes)
        return self._given

    def pack(self, value: Any) -> Packed:
        """Pickle a value, its arrays and plain tensors apart; those outside the slot go there."""
        buffers: list[NDArray[np.uint8]] = []
        body = io.BytesIO()
        pickler = (_TensorPickler if "torch" in sys.modules else pickle.Pickler)(
            body,
            pickle.HIGHEST_PROTOCOL,
            buffer_callback=lambda buffer: buffers.append(np.frombuffer(buffer.raw(), np.uint8)),
        )
        pickler.dump(value)
        if self._memory is None or self._slot is None:
            return Packed(body.getvalue(), [bytearray(buffer) for buffer in buffers])
        given = self._given
        start, end = (0, 0) if given is None else (given.ctypes.data, aligned(given.size))
        places, outside = [], []
        for buffer in buffers:
            at = buffer.ctypes.data - start
            if given is None or not 0 <= at <= given.size - buffer.size:
                at, end = end, end + aligned(buffer.size)
                outside.append((at, buffer))
            places.append((at, buffer.size))
        if outside:
            memory = self._memory.memory(self._slot, end)
            for at, buffer in outside:
                memory[at : at + buffer.size] = buffer
        return Packed(body.getvalue(), places, max(end, 1) if places else 0)


def unpack(packed: Packed, memory: NDArray[np.uint8] | None) -> Any:
    """Return the value again, its arrays views of `memory`, which lives as long as one of them."""
    buffers = packed.places
    if memory is not None:
        buffers = [memory[at : at + size_bytes] for at, size_bytes in packed.places]
    return pickle.loads(packed.body, buffers=buffers)


class _TensorPickler(pickle.Pickler):
    """Hands out the bytes of plain tensors as it does those of arrays, by protocol 5."""

    def reducer_override(self, value: Any) -> Any:
        import torch

        if not (is_plain(value) and value.numel()):
            return NotImplemented
        plain, stride = value, None
        last = value.ndim == 4 and value.is_contiguous(memory_format=torch.channels_last)
        if last and not value.is_contiguous():
            plain, stride = value.permute(0, 2, 3, 1), value.stride()
        flat = plain.flatten()
        if flat.data_ptr() % flat.itemsize:
            flat = flat.clone()  # part of a slot; others are laid down where it is aligned
        buffer = pickle.PickleBuffer(flat.view(torch.uint8).numpy())
        return _tensor_of, (buffer, value.dtype, tuple(value.shape), stride)


def _tensor_of(
    buffer: Any, dtype: torch.dtype, shape: tuple[int, ...], stride: tuple[int, ...] | None
) -> torch.Tensor:
    """Return a tensor of its bytes; `stride` where it is not contiguous."""
    import torch

    flat = torch.frombuffer(buffer, dtype=dtype)
    return flat.view(shape) if stride is None else flat.as_strided(shape, stride)


def aligned(size_bytes: int) -> int:
    """Round a size up, so that what follows is aligned for every type."""
    return -(-size_bytes // _ALIGNMENT) * _ALIGNMENT
