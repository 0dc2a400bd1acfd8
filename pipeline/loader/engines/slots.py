"""Slots of shared memory: written by a worker process, viewed by the consumer's tensors."""

from __future__ import annotations

import io
import logging
import mmap
import os
import pickle
import weakref
from collections import deque
from dataclasses import dataclass
from itertools import count
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    import torch

_logger = logging.getLogger(__name__)

_GRAIN_BYTES = 2 << 20
_ALIGNMENT = 64  # bytes; a cache line, and enough for every type and vector unit


class Slot:
    """One anonymous file in memory, known by its descriptor.

    It has no name and no place in /dev/shm: nothing has to be removed, no limit of a container
    holds, and it is gone with the last process that has it. Only the worker that writes a slot
    makes it larger; pages that were never written take no memory.

    Args:
        number: Its number, which never stands for another one.
        fd: The descriptor.

    Attributes:
        number: Its number.
        fd: The descriptor; -1 when closed.
        in_forks: A forked process may view it.
    """

    def __init__(self, number: int, *, fd: int) -> None:
        self.number = number
        self.fd = fd
        self.in_forks = False
        self._memory: mmap.mmap | None = None

    def memory(self, size_bytes: int) -> NDArray[np.uint8]:
        """Shared memory, uint8 [size_bytes]; the file grows if it has to."""
        if self._memory is None or len(self._memory) < size_bytes:
            there_bytes = os.fstat(self.fd).st_size
            if there_bytes < size_bytes:
                there_bytes = -(-(size_bytes + size_bytes // 8) // _GRAIN_BYTES) * _GRAIN_BYTES
                os.ftruncate(self.fd, there_bytes)
            # The mapping before lives on while somebody views it.
            self._memory = mmap.mmap(self.fd, there_bytes)
        return np.frombuffer(self._memory, np.uint8, size_bytes)

    def close(self) -> None:
        """Give back the descriptor; what is mapped stays while it is viewed. Once is enough."""
        fd, self.fd, self._memory = self.fd, -1, None
        if fd >= 0:
            os.close(fd)


class SlotPool:
    """Slots that are used again when no tensor views them any more.

    Args:
        held: Batches that may lie in their slots, delivered and still viewed. Of any further one
            the bytes are copied into memory of their own, and its slot is free at once:
            descriptors are few, and people do keep whole epochs.
    """

    def __init__(self, held: int) -> None:
        self._held = held
        self._numbers = count()
        self._closed = False
        self._said = False
        self._free: deque[Slot] = deque()
        self._leased: dict[int, tuple[weakref.ref[NDArray[np.uint8]], Slot]] = {}
        # Views end in any thread and between any two instructions. All that happens there is
        # this deque's append: Python code would need a lock, and could swallow a Ctrl-C.
        self._ended: deque[weakref.ref[NDArray[np.uint8]]] = deque()
        _pools.add(self)

    def take(self) -> Slot:
        """A slot that nobody views: the one freed last, whose pages are warm, or a new one."""
        self._collect()
        try:
            return self._free.pop()
        except IndexError:
            return self._new(next(self._numbers))

    def _new(self, number: int) -> Slot:
        fd = os.memfd_create(f"penstock-{number}", os.MFD_CLOEXEC)
        return Slot(number, fd=fd)

    def lease(self, slot: Slot, size_bytes: int) -> NDArray[np.uint8]:
        """The slot's bytes for one batch; the slot comes back when the view is gone.

        Tensors made of the view keep it alive, and so does whatever is made of them.
        """
        self._collect()
        view = slot.memory(size_bytes)
        if len(self._leased) >= self._held:
            if not self._said:
                self._said = True
                _logger.info(
                    "loader: %d batches are kept, so each further one is copied out of its slot",
                    self._held,
                )
            view = view.copy()
            self.give_back(slot)
            return view
        ref = weakref.ref(view, self._ended.append)
        self._leased[id(ref)] = ref, slot
        return view

    def _collect(self) -> None:
        """Take back the slots whose views are gone."""
        while self._ended:
            lease = self._leased.pop(id(self._ended.popleft()), None)
            if lease is not None:
                self.give_back(lease[1])

    def give_back(self, slot: Slot) -> None:
        """Take back a slot that nobody views."""
        if self._closed or slot.in_forks:
            slot.close()
        if not self._closed:
            self._free.append(self._new(slot.number) if slot.in_forks else slot)

    def note_fork(self) -> None:
        """Write no more to what is viewed now: a process that was just forked views it too."""
        for _, slot in list(self._leased.values()):
            slot.in_forks = True

    def close(self) -> None:
        """Give back all descriptors; batches that are kept have their memory until they go."""
        self._closed = True
        while self._leased:
            self._leased.popitem()[1][1].close()
        while self._free:
            self._free.pop().close()


_pools: weakref.WeakSet[SlotPool] = weakref.WeakSet()


def _note_fork() -> None:
    for pool in list(_pools):
        pool.note_fork()


os.register_at_fork(after_in_parent=_note_fork)


@dataclass(frozen=True, slots=True)
class Packed:
    """A pickled value whose arrays and tensors lie in a slot.

    Attributes:
        body: The pickle.
        places: Where the bytes of each buffer lie in the slot, and how many they are.
        size_bytes: Bytes of the slot that are used.
    """

    body: bytes
    places: list[tuple[int, int]]
    size_bytes: int


def pack(value: Any, slot: Slot, *, filled: NDArray[np.uint8] | None = None) -> Packed:
    """Pickle a value, the bytes of its arrays and plain tensors apart from it, in a slot.

    Args:
        value: Deliveries, or whatever else.
        slot: Where the bytes go.
        filled: The beginning of the slot, where some of them may lie already. Those stay where
            they are, and the others come behind.
    """
    buffers: list[NDArray[np.uint8]] = []
    body = io.BytesIO()
    _Pickler(
        body, pickle.HIGHEST_PROTOCOL,
        buffer_callback=lambda buffer: buffers.append(np.frombuffer(buffer.raw(), np.uint8)),
    ).dump(value)  # fmt: skip
    start, end = (0, 0) if filled is None else (filled.ctypes.data, _aligned(filled.size))
    places, behind = [], []
    for buffer in buffers:
        at = buffer.ctypes.data - start
        if filled is None or not 0 <= at <= filled.size - buffer.size:
            at, end = end, end + _aligned(buffer.size)
            behind.append((at, buffer))
        places.append((at, buffer.size))
    if behind:
        memory = slot.memory(end)
        for at, buffer in behind:
            memory[at : at + buffer.size] = buffer
    return Packed(body.getvalue(), places, end)


def unpack(packed: Packed, memory: NDArray[np.uint8] | None) -> Any:
    """The value again, its tensors views of `memory`, which lives as long as one of them."""
    there = np.empty(0, np.uint8) if memory is None else memory
    buffers = [there[at : at + size_bytes] for at, size_bytes in packed.places]
    return pickle.loads(packed.body, buffers=buffers)


class _Pickler(pickle.Pickler):
    """Hands the bytes of plain tensors out as those of arrays are, by protocol 5."""

    def reducer_override(self, value: Any) -> Any:
        import torch

        if not is_plain(value):
            return NotImplemented
        plain, stride = value, None
        last = value.ndim == 4 and value.is_contiguous(memory_format=torch.channels_last)
        if last and not value.is_contiguous():
            plain, stride = value.permute(0, 2, 3, 1), value.stride()
        flat = plain.flatten()
        if flat.data_ptr() % flat.itemsize:
            flat = flat.clone()  # part of a slot; others are laid down where it is aligned
        buffer = pickle.PickleBuffer(flat.view(torch.uint8).numpy())
        return tensor_of, (buffer, value.dtype, tuple(value.shape), stride)


def tensor_of(
    buffer: Any, dtype: torch.dtype, shape: tuple[int, ...], stride: tuple[int, ...] | None
) -> torch.Tensor:
    """A tensor of its bytes; `stride` where it is not contiguous."""
    import torch

    flat = torch.frombuffer(buffer, dtype=dtype)
    return flat.view(shape) if stride is None else flat.as_strided(shape, stride)


def is_plain(value: Any) -> bool:
    """Whether a value is a tensor that its bytes, type and shape say everything about."""
    import torch

    if type(value) is not torch.Tensor or value.requires_grad or not value.numel():
        return False
    if value.device.type != "cpu" or value.layout is not torch.strided:
        return False
    return not (value.is_quantized or value.is_conj() or value.is_neg())


def _aligned(size_bytes: int) -> int:
    return -(-size_bytes // _ALIGNMENT) * _ALIGNMENT
