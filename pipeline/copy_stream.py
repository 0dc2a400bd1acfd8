"""Copies of batches to a CUDA device, on a stream of their own."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol, cast

import torch

from datasets.sample import Batch


class Mark(Protocol):
    """A timed mark in a stream; ``torch.cuda.Event(enable_timing=True)`` is one."""

    def query(self) -> bool:
        """Whether the device has come so far."""

    def synchronize(self) -> None:
        """Wait until it has."""

    def elapsed_time(self, later: Any) -> float:
        """Milliseconds to a later mark, both of them passed."""


@dataclass(frozen=True, slots=True)
class Copy:
    """A batch on its way.

    Attributes:
        host: The batch in host memory, which must stay as it is until `done`.
        batch: The batch on the device.
        begun: Where the copying begins in its stream.
        done: Where it ends.
    """

    host: Batch
    batch: Batch
    begun: Mark
    done: Mark


class CopyStream(Protocol):
    """Copies beside what the device computes."""

    def current(self) -> AbstractContextManager[Any]:
        """Makes this the current stream of the thread."""

    def copy(self, host: Batch) -> Copy:
        """Have a batch copied; returns at once if it lies in page-locked memory."""

    def deliver(self, copy: Copy) -> Batch:
        """The batch on the device, for use in the thread's current stream from now on."""


class CudaCopyStream:
    """A side stream of a CUDA device."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._stream = torch.cuda.Stream(device)

    def current(self) -> AbstractContextManager[Any]:
        """Makes this the current stream of the thread."""
        return torch.cuda.stream(self._stream)

    def copy(self, host: Batch) -> Copy:
        """Have a batch copied; returns at once if it lies in page-locked memory."""
        begun, done = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        with self.current():
            begun.record(self._stream)
            batch = map_tensors(host, lambda tensor: tensor.to(self._device, non_blocking=True))
            done.record(self._stream)
        return Copy(host, batch, begun, done)

    def deliver(self, copy: Copy) -> Batch:
        """The batch on the device, for use in the thread's current stream from now on."""
        compute = torch.cuda.current_stream(self._device)
        compute.wait_event(cast("torch.cuda.Event", copy.done))
        # The memory belongs to the side stream; without this it could be given out again there
        # while the compute stream still reads it.
        map_tensors(copy.batch, partial(_record, stream=compute))
        return copy.batch


def _record(tensor: torch.Tensor, stream: torch.cuda.Stream) -> torch.Tensor:
    if tensor.device.type == "cuda":
        tensor.record_stream(stream)
    return tensor


def map_tensors(value: Any, function: Callable[[torch.Tensor], torch.Tensor]) -> Any:
    """`function` of every tensor in dicts, lists and tuples; other values stay."""
    if isinstance(value, torch.Tensor):
        return function(value)
    if isinstance(value, dict):
        return {key: map_tensors(item, function) for key, item in value.items()}
    if isinstance(value, list):
        if value and isinstance(value[0], str) and isinstance(value[-1], str):
            return value  # the keys, of which there are many
        return [map_tensors(item, function) for item in value]
    if isinstance(value, tuple) and not hasattr(value, "_fields"):
        return tuple(map_tensors(item, function) for item in value)
    return value
