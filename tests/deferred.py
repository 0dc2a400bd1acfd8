"""A stand-in for an accelerator whose streams run late, in an order that a seed decides.

Tensors "on the device" are tensors in host memory. While the stand-in is entered, every operation
on them joins the queue of the current stream. When the last tensor that views some memory is gone,
that memory is spoiled in the stream that allocated it: a caching allocator would lend it again.
"""

from __future__ import annotations

import ctypes
import random
import weakref
from collections import deque
from collections.abc import Callable
from typing import Any, Literal

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten, tree_map

from penstock.pipeline.loader.device.accelerator import Accelerator

SPOILED = 0xEE
Order = Literal["lazy", "eager", "random"]


class Deferred(TorchDispatchMode, Accelerator):
    """The stand-in.

    Args:
        seed: Decides the order.
        order: When queues are worked off: as late as the host allows, at once, or anyhow.
        ignored: A mutation: waits for ``filled`` or ``freed`` do nothing, or ``query`` says that
            every event has happened.
    """

    def __init__(self, seed: int, order: Order, ignored: str = "") -> None:
        super().__init__()
        self.device = torch.device("cpu")
        self.ignored = ignored
        self.is_running = False
        self.streams: list[Stream] = []
        self.current = [Stream(self)]
        self._favoured = self.current[0]
        self._order = order
        self._random = random.Random(seed)
        self._memory: dict[int, bytearray] = {}
        self._leases: dict[int, Any] = {}
        self._registered: dict[int, int] = {}

    def stream(self) -> Any:
        return Stream(self)

    def current_stream(self) -> Any:
        return self.current[-1]

    def event(self) -> Any:
        return Event(self)

    def pinned(self, size_bytes: int) -> torch.Tensor:
        return torch.full((size_bytes,), SPOILED, dtype=torch.uint8)

    def register(self, address: int, size_bytes: int) -> bool:
        self._registered[address] = size_bytes
        return True

    def unregister(self, address: int) -> None:
        del self._registered[address]

    def empty(self, size_bytes: int) -> torch.Tensor:
        raw = bytearray([SPOILED]) * max(size_bytes, 1)
        stream, lease = self.current[-1], memoryview(raw)
        tensor = torch.frombuffer(lease, dtype=torch.uint8)
        address = tensor.data_ptr()

        def free(ref: Any) -> None:
            del self._memory[address], self._leases[address]
            stream.add(lambda: raw.__setitem__(slice(None), bytes([SPOILED]) * len(raw)))

        self._memory[address], self._leases[address] = raw, weakref.ref(lease, free)
        return tensor

    def read(self, tensor: torch.Tensor) -> torch.Tensor:
        """Return a tensor of the device in host memory, when all work before is done."""
        self.finish()
        copy = torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype)
        self.is_running = True
        copy.copy_(self._alias(tensor))
        self.is_running = False
        return copy

    def finish(self) -> None:
        """Work off all queues."""
        while any(stream.queue for stream in self.streams):
            assert self._steps(self.streams), "streams wait for each other"

    def advance(self) -> None:
        """Go on as far as the order says, after something was added."""
        if self._order == "eager":
            while self._steps(self.streams):
                pass
        elif self._order == "random":
            if self._random.random() < 0.1:
                self._favoured = self._random.choice(self.streams)
            for _ in range(self._random.randrange(8)):
                self._favoured.step()

    def hurry(self) -> None:
        """Go on with one thing, because the host waits."""
        self._steps(self._random.sample(self.streams, len(self.streams)), most=1)

    @staticmethod
    def _steps(streams: list[Stream], most: int | None = None) -> int:
        count = 0
        for stream in streams:
            count += stream.step()
            if count == most:
                break
        return count

    def is_there(self, value: Any) -> bool:
        """Whether a tensor is on the device."""
        return isinstance(value, torch.Tensor) and self._raw(value) is not None

    def _raw(self, tensor: torch.Tensor) -> bytearray | None:
        return self._memory.get(tensor.untyped_storage().data_ptr())

    def _alias(self, value: Any) -> Any:
        """Return a tensor of the same bytes that keeps no memory from being used again."""
        if not isinstance(value, torch.Tensor) or not value.numel():
            return value
        buffer: Any = self._raw(value)
        if buffer is None:
            storage = value.untyped_storage()
            address = storage.data_ptr()
            if not any(a <= address < a + size for a, size in self._registered.items()):
                return value
            buffer = (ctypes.c_char * storage.nbytes()).from_address(address)
        count = len(buffer) // value.itemsize
        flat = torch.frombuffer(buffer, dtype=value.dtype, count=count)
        return flat.as_strided(value.shape, value.stride(), value.storage_offset())

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        leaves = tree_flatten((args, kwargs))[0]
        if self.is_running or func.is_view or not any(map(self.is_there, leaves)):
            return func(*args, **kwargs)
        late = tree_map(self._alias, (args, kwargs))
        if func._schema.is_mutable:
            self.current[-1].add(lambda: func(*late[0], **late[1]))
            return args[0]
        meta = tree_map(_meta, (args, kwargs))
        out = tree_map(self._like, func(*meta[0], **meta[1]))
        targets = tree_map(self._alias, out)

        def run() -> None:
            results = tree_flatten(func(*late[0], **late[1]))[0]
            for target, result in zip(tree_flatten(targets)[0], results, strict=True):
                target.copy_(result)

        self.current[-1].add(run)
        return out

    def _like(self, meta: torch.Tensor) -> torch.Tensor:
        laid = self.empty(meta.untyped_storage().nbytes()).view(meta.dtype)
        return laid.as_strided(meta.shape, meta.stride())


def _meta(value: Any) -> Any:
    if not isinstance(value, torch.Tensor):
        return value
    return torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device="meta")


class Stream:
    """A queue of work."""

    def __init__(self, device: Deferred) -> None:
        self.queue: deque[Callable[[], Any]] = deque()
        self._device = device
        device.streams.append(self)

    def __enter__(self) -> None:
        self._device.current.append(self)

    def __exit__(self, *_: object) -> None:
        self._device.current.pop()

    def add(self, work: Callable[[], Any]) -> None:
        """Put something at the end."""
        self.queue.append(work)
        self._device.advance()

    def wait_event(self, event: Event) -> None:
        """Go on when what was recorded last has happened."""
        is_copying = self is not self._device.current[0]
        if self._device.ignored != ("freed" if is_copying else "filled"):
            recorded = event.recorded
            self.add(lambda: event.happened >= recorded)

    def step(self) -> bool:
        """Do the first thing, unless it waits."""
        if not self.queue or self._device.is_running:
            return False
        self._device.is_running = True
        done = self.queue[0]() is not False
        self._device.is_running = False
        if done:
            self.queue.popleft()
        return done


class Event:
    """A mark in streams, counted so that it can be recorded again."""

    def __init__(self, device: Deferred) -> None:
        self.recorded = self.happened = 0
        self._device = device

    def record(self, stream: Stream) -> None:
        """Put the mark at the end of a stream."""
        self.recorded += 1
        number = self.recorded
        stream.add(lambda: setattr(self, "happened", number))

    def query(self) -> bool:
        """Whether it has happened."""
        self._device.hurry()
        return self._device.ignored == "ended" or self.happened >= self.recorded

    def elapsed_time(self, later: Event) -> float:
        """Milliseconds; any will do."""
        assert self._device.ignored or later.happened >= later.recorded > 0
        return 250.0
