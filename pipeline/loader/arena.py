"""The arena: shared memory that workers write batches to, and the consumer reads them from.

Arrays travel as places in a slot of the arena, and everything else of a batch as a small pickle.
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
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from penstock.pipeline.loader.contract import is_plain

if TYPE_CHECKING:
    import torch

    from penstock.pipeline.loader.device.accelerator import PageLock

_SLOT_BYTES = 1 << 34
_MOST_SLOTS = 256
_GRAIN_BYTES = 2 << 20
_ALIGNMENT = 64  # bytes; a cache line, and enough for every type and vector unit


class SharedFile:
    """A file without a name, of which each slot maps a part.

    Pages that were never written take no memory. A memfd does not count in /dev/shm, which
    containers keep small; on a machine without memfd a temporary file takes its place. The memory
    is gone with the last process that has the descriptor, even if all are killed.

    Args:
        descriptor: Descriptor that another process sent; None: a new file.
    """

    def __init__(self, descriptor: int | None = None) -> None:
        if descriptor is None:
            descriptor = _new_file()
            os.ftruncate(descriptor, _SLOT_BYTES * _MOST_SLOTS)
        self.descriptor = descriptor
        self._maps: dict[int, mmap.mmap] = {}
        self._map: Callable[..., mmap.mmap] = mmap.mmap

    def page_lock(self, lock: PageLock) -> None:
        """Page-lock all slots that are mapped from now on."""
        self._map = lock.map
        self._maps.clear()

    def memory(self, slot: int, size_bytes: int) -> NDArray[np.uint8]:
        """Return the beginning of a slot, uint8 [size_bytes]."""
        mapped = self._maps.get(slot)
        if mapped is None or len(mapped) < size_bytes:
            length = -(-(size_bytes + size_bytes // 8) // _GRAIN_BYTES) * _GRAIN_BYTES
            if length > _SLOT_BYTES:
                raise MemoryError(f"loader: a batch of {size_bytes / 1e9:,.0f} GB")
            # The mapping before lives on while a view of it does.
            self._maps.pop(slot, None)
            del mapped
            mapped = self._maps[slot] = self._map(
                self.descriptor, length, offset=slot * _SLOT_BYTES
            )
        return np.frombuffer(mapped, np.uint8, size_bytes)

    def close(self) -> None:
        """Close the descriptor; mapped memory stays while it is viewed. Twice does no harm."""
        descriptor, self.descriptor = self.descriptor, -1
        self._maps.clear()
        if descriptor >= 0:
            os.close(descriptor)


def _new_file() -> int:
    if hasattr(os, "memfd_create"):
        try:
            return os.memfd_create("penstock")
        except OSError:
            pass  # a kernel without it
    with tempfile.TemporaryFile() as file:
        return os.dup(file.fileno())


class Arena:
    """Slots of shared memory, which are used again when no array views them any more.

    Args:
        slots: Slots at most. While the consumer keeps batches in all of them, further batches
            travel without one.
    """

    def __init__(self, slots: int) -> None:
        self.file = SharedFile()
        self._slots = min(slots, _MOST_SLOTS)
        self._made = 0
        self._free: list[int] = []
        self._leased: dict[int, tuple[weakref.ref[NDArray[np.uint8]], int]] = {}
        # Views end in any thread and between any two instructions. All that happens there is
        # this deque's append: Python code would need a lock, and could swallow a Ctrl-C.
        self._ended: deque[weakref.ref[NDArray[np.uint8]]] = deque()
        _arenas.add(self)

    def take(self) -> int | None:
        """Take the slot freed last, whose pages are warm, or a new one; None if all are viewed."""
        while self._ended:
            lease = self._leased.pop(id(self._ended.popleft()), None)
            if lease is not None:
                self._free.append(lease[1])
        if self._free:
            return self._free.pop()
        if self._made == self._slots:
            return None
        self._made += 1
        return self._made - 1

    def give_back(self, slot: int | None) -> None:
        """Take back a slot without views."""
        if slot is not None:
            self._free.append(slot)

    def lease(self, slot: int, size_bytes: int) -> NDArray[np.uint8]:
        """Return the memory of a batch; its slot comes back when all views of it are gone."""
        view = self.file.memory(slot, size_bytes)
        ref = weakref.ref(view, self._ended.append)
        self._leased[id(ref)] = ref, slot
        return view

    def note_fork(self) -> None:
        """Never write again to memory that a forked process views."""
        self._slots = min(self._slots + len(self._leased), _MOST_SLOTS)
        self._leased.clear()

    def close(self) -> None:
        """Give the memory back, once no batch in it is left."""
        self.file.close()


_arenas: weakref.WeakSet[Arena] = weakref.WeakSet()


def _note_fork() -> None:
    for arena in list(_arenas):
        arena.note_fork()


os.register_at_fork(after_in_parent=_note_fork)


@dataclass(frozen=True, slots=True)
class Packed:
    """A pickled value with its arrays in a slot.

    Attributes:
        body: The pickle.
        places: First byte and size of each array in the slot; without a slot, the arrays.
        size_bytes: Bytes of the slot that are used.
    """

    body: bytes
    places: list[Any]
    size_bytes: int = 0


class Layout:
    """The memory of a slot that a batch is computed in.

    Args:
        file: The shared file; None: arrays travel as they are.
        slot: The slot; None: arrays travel in the message.
    """

    def __init__(self, file: SharedFile | None, slot: int | None) -> None:
        self._file = file
        self._slot = slot
        self._given: NDArray[np.uint8] | None = None

    def allocate(self, size_bytes: int) -> NDArray[np.uint8]:
        """Return the beginning of the slot; a second call takes it back from the first.

        A batch whose columns turn out to be damaged is made again, sample by sample.
        """
        if self._file is None or self._slot is None:
            return np.empty(size_bytes, np.uint8)
        self._given = self._file.memory(self._slot, size_bytes)
        return self._given

    def pack(self, value: Any) -> Packed:
        """Pickle a value, its arrays and plain tensors apart; those outside the slot go there."""
        buffers: list[NDArray[np.uint8]] = []
        body = io.BytesIO()
        kind = _TensorPickler if "torch" in sys.modules else pickle.Pickler
        kind(
            body, pickle.HIGHEST_PROTOCOL,
            buffer_callback=lambda buffer: buffers.append(np.frombuffer(buffer.raw(), np.uint8)),
        ).dump(value)  # fmt: skip
        if self._file is None:
            return Packed(body.getvalue(), [*buffers])
        if self._slot is None:
            return Packed(body.getvalue(), [bytearray(buffer) for buffer in buffers])
        given = self._given
        start, end = (0, 0) if given is None else (given.ctypes.data, _aligned(given.size))
        places, outside = [], []
        for buffer in buffers:
            at = buffer.ctypes.data - start
            if given is None or not 0 <= at <= given.size - buffer.size:
                at, end = end, end + _aligned(buffer.size)
                outside.append((at, buffer))
            places.append((at, buffer.size))
        if outside:
            memory = self._file.memory(self._slot, end)
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
    """A tensor of its bytes; `stride` where it is not contiguous."""
    import torch

    flat = torch.frombuffer(buffer, dtype=dtype)
    return flat.view(shape) if stride is None else flat.as_strided(shape, stride)


def _aligned(size_bytes: int) -> int:
    return -(-size_bytes // _ALIGNMENT) * _ALIGNMENT
