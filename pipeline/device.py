"""Copy batches to the device on a side stream, while it still computes."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Generator, Iterator, Sequence, Sized
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch

from penstock.core.contracts import BatchTransform
from penstock.core.sample import Batch, on_pixels
from penstock.pipeline.loader.stats import LoaderStats


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
    begun: torch.cuda.Event
    done: torch.cuda.Event


class CopyStream:
    """A side stream of a CUDA device: it copies beside what the device computes."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._stream = torch.cuda.Stream(device)

    def copy(self, host: Batch) -> Copy:
        """Have a batch copied; returns at once if it lies in page-locked memory."""
        begun, done = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        with torch.cuda.stream(self._stream):
            begun.record(self._stream)
            batch = map_tensors(host, lambda tensor: tensor.to(self._device, non_blocking=True))
            done.record(self._stream)
        return Copy(host, batch, begun, done)

    def deliver(self, copy: Copy) -> Batch:
        """The batch on the device, for use in the thread's current stream from now on."""
        compute = torch.cuda.current_stream(self._device)
        compute.wait_event(copy.done)
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


_NOT_INPUTS = ("label", "box", "keypoints", "mask", "index", "position", "epoch", "valid",
               "num_valid", "source")  # fmt: skip


def describe_inputs(batch: Batch) -> str:
    """Tell what a model gets: type, order and shape, and range of each field of a batch."""
    told = []
    for name, value in batch.items():
        first = value[0] if isinstance(value, list) and value else value
        if name.startswith(_NOT_INPUTS) or not isinstance(first, torch.Tensor):
            continue
        rows = first[None] if isinstance(value, list) else first
        if not rows.numel():
            continue
        kind, shape = str(rows.dtype).removeprefix("torch."), ["B", *map(str, rows.shape[1:])]
        order = ""
        if name == "image" and rows.ndim == 4:
            order = ", channels last" if rows.shape[-1] in (1, 3, 4) else ", channels first"
        low, high = rows.min().item(), rows.max().item()
        told.append(f"{name} {kind} [{', '.join(shape)}]{order}, {low:.3g} to {high:.3g}")
    return "; ".join(told[:4]) or "nothing but labels"


def _sizes_of(batch: Batch) -> set[tuple[int, int]]:
    """Return the heights and widths of the images of a batch; none where they are padded."""
    images = batch.get("image")
    if isinstance(images, torch.Tensor):
        images = [] if images.is_nested or images.ndim < 4 else [*images[:1]]
    if not isinstance(images, list) or "image_lengths" in batch:
        return set()
    sizes = set()
    for image in images:
        if isinstance(image, torch.Tensor) and image.ndim > 2:
            last = image.shape[-1] in (1, 3, 4)
            high, wide = image.shape[-3:-1] if last else image.shape[-2:]
            sizes.add((high, wide))
    return sizes


class DevicePrefetcher:
    """Iterates over a loader and yields its batches on the device, transformed there.

    On CUDA the copy of batch n + 1 is issued on a stream of its own before batch n is yielded,
    so it overlaps with the computing of batch n; page-locked memory makes it asynchronous. A
    batch stays in host memory until its copy is through. On the CPU nothing is read ahead. Each
    batch gets ``num_valid``, an int counted before the copy, so that nobody has to wait for the
    device to learn it.

    Args:
        loader: Yields dicts of tensors; has `state_dict`, `load_state_dict`, `set_epoch`, `len`.
        device: Where batches go.
        transforms: Applied in order on the device, in the stream of whoever iterates.
        stream: Copies to the device; None: a stream of its own on CUDA, none on the CPU.

    Attributes:
        wait_s: Seconds spent waiting for the loader, since it was made.
        copy_s: Seconds that the device spent on copies, as its own clock says, since it was
            made. Counted when a copy is found to be through, which is never waited for.
    """

    def __init__(
        self,
        loader: Any,
        device: torch.device | str,
        transforms: Sequence[BatchTransform] = (),
        *,
        stream: CopyStream | None = None,
    ) -> None:
        self.loader = loader
        self.device = torch.device(device)
        self.transforms = list(transforms)
        self.wait_s = 0.0
        self.copy_s = 0.0
        self._stream = stream
        if stream is None and self.device.type == "cuda":
            self._stream = CopyStream(self.device)
        # A loader of somebody else's need not have any.
        stats = getattr(loader, "stats", None)
        self._stats = stats if isinstance(stats, LoaderStats) else None
        self._under_way: deque[Copy] = deque()
        self._yielded_state: dict[str, Any] | None = None
        self._image_sizes: set[tuple[int, int]] = set()

    def __len__(self) -> int:
        return len(self.loader)

    def __iter__(self) -> Iterator[Batch]:
        batches = iter(self.loader)
        try:
            if self._stream is None:
                yield from self._directly(batches)
            else:
                yield from self._copied_ahead(batches, self._stream)
        finally:
            # Closing at once lets the loader stop its read-ahead when an epoch is left early.
            if isinstance(batches, Generator):
                batches.close()

    @property
    def image_size(self) -> tuple[int, int] | None:
        """Height and width of all images so far; None if there were none, or if they differ."""
        return next(iter(self._image_sizes)) if len(self._image_sizes) == 1 else None

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
            batch = on_pixels(transform, batch)
        if len(self._image_sizes) < 2:
            self._image_sizes |= _sizes_of(batch)
        return batch

    def _directly(self, batches: Iterator[Batch]) -> Iterator[Batch]:
        while (batch := self._read(batches)) is not None:
            if self.device.type != "cpu":
                batch = map_tensors(batch, lambda tensor: tensor.to(self.device))
            yield self._transformed(batch)

    def _copied_ahead(self, batches: Iterator[Batch], stream: CopyStream) -> Iterator[Batch]:
        try:
            coming = self._issue(batches, stream)
            while coming is not None:
                copy, state = coming
                batch = self._transformed(stream.deliver(copy))
                del copy
                coming = self._issue(batches, stream)
                self._yielded_state = state
                yield batch
                del batch
            self._yielded_state = None
        finally:
            self._retire(wait=True)

    def _issue(
        self, batches: Iterator[Batch], stream: CopyStream
    ) -> tuple[Copy, dict[str, Any]] | None:
        """Read a batch and have it copied; the copy, and the loader's state behind it."""
        host = self._read(batches)
        if host is None:
            return None
        self._retire()
        copy = stream.copy(host)
        self._under_way.append(copy)
        return copy, self.loader.state_dict()

    def _retire(self, *, wait: bool = False) -> None:
        """Let go of the batches in host memory whose copies are through.

        They wait for nothing but the bus, so no more than the one ahead is under way for long;
        any further one is waited for.
        """
        while self._under_way:
            copy = self._under_way[0]
            if wait or len(self._under_way) > 1:
                copy.done.synchronize()
            elif not copy.done.query():
                return
            seconds = copy.begun.elapsed_time(copy.done) / 1000
            self.copy_s += seconds
            if self._stats is not None:
                self._stats.copy_s += seconds
            self._under_way.popleft()


def _count_valid(batch: Batch) -> int:
    """Valid rows; without a ``valid`` field all rows count."""
    if "valid" in batch:
        valid = batch["valid"]
        if valid.device.type != "cpu":
            return int(valid.count_nonzero())
        # NumPy keeps the interpreter's lock for that; torch gives it up, and waits to get it back.
        return int(np.count_nonzero(valid.numpy()))
    return next((len(value) for value in batch.values() if isinstance(value, Sized)), 0)
