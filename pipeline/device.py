"""Batches to the device: copied on a side stream while the device still computes."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import torch

from datasets.protocols import BatchTransform
from datasets.sample import Batch


class DevicePrefetcher:
    """Iterates over a loader and yields its batches on the device, transformed there.

    On CUDA the copy of batch n + 1 is issued on a stream of its own before batch n is yielded,
    so it overlaps with the computing of batch n; pinned memory makes it asynchronous. On the
    CPU nothing is read ahead. Each batch gets ``num_valid``, an int counted before the copy, so
    that nobody has to wait for the device to learn it.

    Args:
        loader: Yields dicts of tensors; has `state_dict`, `load_state_dict`, `set_epoch`, `len`.
        device: Where batches go.
        transforms: Applied in order on the device, in the stream of whoever iterates.

    Attributes:
        wait_s: Seconds spent waiting for the loader, since it was made.
    """

    def __init__(
        self,
        loader: Any,
        device: torch.device | str,
        transforms: Sequence[BatchTransform] = (),
    ) -> None:
        self.loader = loader
        self.device = torch.device(device)
        self.transforms = list(transforms)
        self.wait_s = 0.0
        self._stream = torch.cuda.Stream(self.device) if self.device.type == "cuda" else None
        self._yielded_state: dict[str, Any] | None = None

    def __len__(self) -> int:
        return len(self.loader)

    def __iter__(self) -> Iterator[Batch]:
        batches = iter(self.loader)
        try:
            yield from self._on_cuda(batches) if self._stream else self._on_cpu(batches)
        finally:
            # Closing at once lets the loader stop its read-ahead when an epoch is left early.
            close = getattr(batches, "close", None)
            if close is not None:
                close()

    def set_epoch(self, epoch: int) -> None:
        """Set the loader's epoch."""
        self._yielded_state = None
        self.loader.set_epoch(epoch)

    def state_dict(self) -> dict[str, Any]:
        """The loader's state after the batches *yielded*, whatever was read ahead."""
        if self._yielded_state is not None:
            return self._yielded_state
        return self.loader.state_dict()

    def load_state_dict(self, state: dict[str, Any], **options: Any) -> None:
        """Set the loader to a state; `options` go to the loader."""
        self._yielded_state = None
        self.loader.load_state_dict(state, **options)

    def _read(self, batches: Iterator[Batch]) -> Batch | None:
        """The next batch in host memory, with its valid rows counted; None at the end."""
        start = time.perf_counter()
        batch = next(batches, None)
        self.wait_s += time.perf_counter() - start
        if batch is not None:
            batch = {**batch, "num_valid": _count_valid(batch)}
        return batch

    def _transformed(self, batch: Batch) -> Batch:
        for transform in self.transforms:
            batch = transform(batch)
        return batch

    def _on_cpu(self, batches: Iterator[Batch]) -> Iterator[Batch]:
        while (batch := self._read(batches)) is not None:
            yield self._transformed(_map_tensors(batch, lambda tensor: tensor.to(self.device)))

    def _on_cuda(self, batches: Iterator[Batch]) -> Iterator[Batch]:
        ahead = self._copy(batches)
        while ahead is not None:
            _host, batch, copied, state = ahead
            compute = torch.cuda.current_stream(self.device)
            compute.wait_event(copied)
            # The memory belongs to the side stream; without this it could be given out again
            # there while the compute stream still reads it.
            _map_tensors(batch, partial(_record, stream=compute))
            batch = self._transformed(batch)
            following = self._copy(batches)
            # The host's memory may be written again only once its copy is through. By now it
            # is: waiting for the next batch took longer.
            copied.synchronize()
            del _host
            self._yielded_state = state
            ahead = following
            yield batch
        self._yielded_state = None

    def _copy(
        self, batches: Iterator[Batch]
    ) -> tuple[Batch, Batch, torch.cuda.Event, dict[str, Any]] | None:
        """Read a batch and issue its copy: host batch, device batch, copy's event, state."""
        assert self._stream is not None
        host = self._read(batches)
        if host is None:
            return None
        state = self.loader.state_dict()
        with torch.cuda.stream(self._stream):
            batch = _map_tensors(host, lambda tensor: tensor.to(self.device, non_blocking=True))
            copied = torch.cuda.Event()
            copied.record(self._stream)
        return host, batch, copied, state


def _count_valid(batch: Batch) -> int:
    """Valid rows; without a ``valid`` field all rows count."""
    if "valid" in batch:
        return int(batch["valid"].sum())
    return next((len(value) for value in batch.values() if hasattr(value, "__len__")), 0)


def _record(tensor: torch.Tensor, stream: torch.cuda.Stream) -> torch.Tensor:
    tensor.record_stream(stream)
    return tensor


def _map_tensors(value: Any, function: Callable[[torch.Tensor], torch.Tensor]) -> Any:
    """`function` of every tensor in dicts, lists and tuples; other values stay."""
    if isinstance(value, torch.Tensor):
        return function(value)
    if isinstance(value, dict):
        return {key: _map_tensors(item, function) for key, item in value.items()}
    if isinstance(value, list):
        return [_map_tensors(item, function) for item in value]
    if isinstance(value, tuple) and not hasattr(value, "_fields"):
        return tuple(_map_tensors(item, function) for item in value)
    return value
