"""The device queue: batches on an accelerator, copied while it computes."""

from __future__ import annotations

import time
from collections.abc import Generator, Iterator, Sequence, Sized
from typing import Any

import numpy as np
import torch

from penstock.core.contracts import BatchTransform
from penstock.core.sample import Batch
from penstock.pipeline.loader.contract import mapped, to_tensor
from penstock.pipeline.loader.device.accelerator import Accelerator, PageLock
from penstock.pipeline.loader.device.ring import Ring, Slot
from penstock.pipeline.loader.loader import Loader
from penstock.pipeline.loader.stats import LoaderStats
from penstock.transforms.device.steps import Draws, apply_steps, host_draws

_Drawn = tuple[Batch, list[Draws]]


class DeviceQueue:
    """Iterates over a loader and yields its batches on the device, transformed there.

    On an accelerator a batch is copied in a stream of its own, beside what the device computes,
    and is yielded as soon as its copy is issued. The next one is copied ahead if the loader has
    it ready. Workers write batches to page-locked memory, where the loader can. A batch that was
    yielded owns its memory. Each batch gets ``num_valid``, an int counted on the host.

    Args:
        loader: Yields dicts of tensors; has `state_dict`, `load_state_dict`, `set_epoch`, `len`.
        transforms: Applied in order on the device, in the stream of the consumer.
        depth: Batches that are copied ahead of the device at most.
        accelerator: Stands for the device; None: torch's.

    Attributes:
        wait_s: Seconds spent waiting for the loader, since it was made.
        copy_s: Seconds of the copies that have ended, by the device's clock, since it was made.
    """

    def __init__(
        self,
        loader: Any,
        device: torch.device | str,
        transforms: Sequence[BatchTransform] = (),
        *,
        depth: int = 2,
        accelerator: Accelerator | None = None,
    ) -> None:
        self.loader = loader
        self.device = torch.device(device)
        self.transforms = list(transforms)
        self.wait_s = self.copy_s = 0.0
        # The loader of another library has none.
        stats = getattr(loader, "stats", None)
        self._stats = stats if isinstance(stats, LoaderStats) else None
        self._ring: Ring | None = None
        self._lock: PageLock | None = None
        self._yielded_state: dict[str, Any] | None = None
        self._image_sizes: set[tuple[int, int]] = set()
        accelerator = accelerator or Accelerator.of(self.device)
        if accelerator is not None:
            self.device = accelerator.device
            is_ours = isinstance(loader, Loader)
            self._lock = loader.page_lock(accelerator) if is_ours else PageLock(accelerator)
            self._ring = Ring(accelerator, self._lock, depth=depth, ended=self._copy_ended)

    def __len__(self) -> int:
        return len(self.loader)

    def __iter__(self) -> Iterator[Batch]:
        left = self._yielded_state  # if the last iteration ended early
        if left is not None and isinstance(self.loader, Loader):
            plan = self.loader.plan
            if plan is None or left["next_batch"] < plan.num_batches:
                self.loader.set_epoch(left["epoch"])  # batches copied ahead were not used
        batches = iter(self.loader)
        try:
            if self._ring is None:
                yield from self._directly(batches)
            else:
                yield from self._copied(batches, self._ring)
        finally:
            # Closing at once lets the loader stop its read-ahead when an epoch is left early.
            if isinstance(batches, Generator):
                batches.close()

    @property
    def image_size(self) -> tuple[int, int] | None:
        """Height and width of all images so far; None if there were none, or if they differ."""
        return next(iter(self._image_sizes)) if len(self._image_sizes) == 1 else None

    @property
    def pinned_bytes(self) -> int:
        """Page-locked memory that the loader writes batches to."""
        return 0 if self._lock is None else self._lock.size_bytes

    def set_epoch(self, epoch: int) -> None:
        """Set the loader's epoch."""
        self._yielded_state = None
        self.loader.set_epoch(epoch)

    def state_dict(self) -> dict[str, Any]:
        """Return the loader's state after the batches *yielded*, whatever was copied ahead."""
        if self._yielded_state is not None:
            return self._yielded_state
        return self.loader.state_dict()

    def load_state_dict(self, state: dict[str, Any], **options: Any) -> None:
        """Set the loader to a state; `options` go to the loader."""
        self._yielded_state = None
        self.loader.load_state_dict(state, **options)

    def _read(self, batches: Iterator[Batch]) -> Batch | None:
        """Return the next batch in host memory, with its valid rows counted; None at the end."""
        start = time.perf_counter()
        batch = next(batches, None)
        self.wait_s += time.perf_counter() - start
        return None if batch is None else {**batch, "num_valid": _count_valid(batch)}

    def _drawn(self, host: Batch) -> _Drawn:
        """Draw on the host for all transforms; the draws travel with the batch."""
        return host, mapped(host_draws(self.transforms, host), to_tensor)

    def _changed(self, drawn: _Drawn) -> Batch:
        batch = apply_steps(self.transforms, *drawn)
        if len(self._image_sizes) < 2:
            self._image_sizes |= _sizes_of(batch)
        return batch

    def _directly(self, batches: Iterator[Batch]) -> Iterator[Batch]:
        while (batch := self._read(batches)) is not None:
            yield self._changed(mapped(self._drawn(batch), self._moved))

    def _moved(self, value: Any) -> Any:
        return value.to(self.device) if isinstance(value, torch.Tensor) else value

    def _copied(self, batches: Iterator[Batch], ring: Ring) -> Iterator[Batch]:
        try:
            sent = self._send(batches, ring)
            while sent is not None:
                slot, state = sent
                batch, sent, error = ring.deliver(slot, self._changed), None, None
                if isinstance(self.loader, Loader) and self.loader.is_ready:
                    try:
                        sent = self._send(batches, ring)
                    except Exception as raised:
                        error = raised
                self._yielded_state = state
                yield batch
                del batch
                if error is not None:
                    raise error
                sent = sent or self._send(batches, ring)
            self._yielded_state = None
        finally:
            ring.retire(wait=True)

    def _send(self, batches: Iterator[Batch], ring: Ring) -> tuple[Slot, dict[str, Any]] | None:
        """Have the next batch copied; return its slot, and the loader's state behind it."""
        ring.retire()
        host = self._read(batches)
        return None if host is None else (ring.send(self._drawn(host)), self.loader.state_dict())

    def _copy_ended(self, seconds: float) -> None:
        self.copy_s += seconds
        if self._stats is not None:
            self._stats.copy += seconds


def _count_valid(batch: Batch) -> int:
    """Count the valid rows; without a ``valid`` field all rows count."""
    if "valid" in batch:
        # NumPy keeps the interpreter's lock for that; torch gives it up, and waits to get it back.
        return int(np.count_nonzero(batch["valid"].cpu().numpy()))
    return next((len(value) for value in batch.values() if isinstance(value, Sized)), 0)


def _sizes_of(batch: Batch) -> set[tuple[int, int]]:
    """Return the height and width of the images of a batch; none if they are padded or a list."""
    image = None if "image_lengths" in batch else batch.get("image")
    if not isinstance(image, torch.Tensor) or image.is_nested or image.ndim < 4:
        return set()
    last = image.shape[-1] in (1, 3, 4)
    high, wide = image.shape[-3:-1] if last else image.shape[-2:]
    return {(high, wide)}
