"""Batches to the device: copied on a side stream while the device still computes."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from typing import Any

import numpy as np
import torch

from datasets.encoded import on_pixels
from datasets.protocols import BatchTransform
from datasets.sample import Batch
from pipeline.copy_stream import Copy, CopyStream, CudaCopyStream, map_tensors


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
        ahead: Batches whose copies are issued before a batch is yielded; each takes its memory
            on the device. More than 1 evens out a loader whose batches come at uneven times.
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
        ahead: int = 1,
        stream: CopyStream | None = None,
    ) -> None:
        if ahead < 1:
            raise ValueError(f"device prefetcher: ahead is {ahead}; needs 1 or more")
        self.loader = loader
        self.device = torch.device(device)
        self.transforms = list(transforms)
        self.wait_s = 0.0
        self.copy_s = 0.0
        self._ahead = ahead
        self._stream = stream
        if stream is None and self.device.type == "cuda":
            self._stream = CudaCopyStream(self.device)
        self._under_way: deque[Copy] = deque()
        self._yielded_state: dict[str, Any] | None = None

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
        # The loader takes memory back when the stream that is current here has come past what
        # was issued: that is the copies, and not what the device computes long after.
        with self._stream.current() if self._stream else nullcontext():
            batch = next(batches, None)
        self.wait_s += time.perf_counter() - start
        if batch is not None:
            batch = {**batch, "num_valid": _count_valid(batch)}
        return batch

    def _transformed(self, batch: Batch) -> Batch:
        for transform in self.transforms:
            batch = on_pixels(transform, batch)
        return batch

    def _directly(self, batches: Iterator[Batch]) -> Iterator[Batch]:
        while (batch := self._read(batches)) is not None:
            if self.device.type != "cpu":
                batch = map_tensors(batch, lambda tensor: tensor.to(self.device))
            yield self._transformed(batch)

    def _copied_ahead(self, batches: Iterator[Batch], stream: CopyStream) -> Iterator[Batch]:
        coming: deque[tuple[Copy, dict[str, Any]]] = deque()
        try:
            self._issue(batches, stream, coming)
            while coming:
                copy, state = coming.popleft()
                batch = self._transformed(stream.deliver(copy))
                del copy
                while len(coming) < self._ahead and self._issue(batches, stream, coming):
                    pass
                self._yielded_state = state
                yield batch
                del batch
            self._yielded_state = None
        finally:
            self._retire(wait=True)

    def _issue(
        self,
        batches: Iterator[Batch],
        stream: CopyStream,
        coming: deque[tuple[Copy, dict[str, Any]]],
    ) -> bool:
        """Read a batch and have it copied; False if there is none."""
        host = self._read(batches)
        if host is None:
            return False
        self._retire()
        copy = stream.copy(host)
        self._under_way.append(copy)
        coming.append((copy, self.loader.state_dict()))
        return True

    def _retire(self, *, wait: bool = False) -> None:
        """Let go of the batches in host memory whose copies are through.

        They wait for nothing but the bus, so no more than those ahead are under way for long;
        any further one is waited for.
        """
        while self._under_way:
            copy = self._under_way[0]
            if wait or len(self._under_way) > self._ahead:
                copy.done.synchronize()
            elif not copy.done.query():
                return
            seconds = copy.begun.elapsed_time(copy.done) / 1000
            self.copy_s += seconds
            stats: Any = getattr(self.loader, "stats", None)  # not every loader has some
            if hasattr(stats, "copy_s"):
                stats.copy_s += seconds
            self._under_way.popleft()


def _count_valid(batch: Batch) -> int:
    """Valid rows; without a ``valid`` field all rows count."""
    if "valid" in batch:
        valid = batch["valid"]
        if valid.device.type != "cpu":
            return int(valid.count_nonzero())
        # NumPy keeps the interpreter's lock for that; torch gives it up, and waits to get it back.
        return int(np.count_nonzero(valid.numpy()))
    return next((len(value) for value in batch.values() if hasattr(value, "__len__")), 0)
