"""Compute the batch of a task, in any process: samples or columns, bad samples, collating."""

from __future__ import annotations

import math
import time
from collections.abc import MutableMapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from penstock.core.contracts import StreamDataset
from penstock.core.registry import name_of
from penstock.core.sample import CUT_TOKENS, BadSample, Batch, Keys, Sample, on_pixels
from penstock.core.stage_times import StageTimes, counted
from penstock.pipeline.loader.bundles import joined, row_bytes, split_rows
from penstock.pipeline.loader.by_sample import BySample, Work
from penstock.pipeline.loader.contract import (
    BatchTask,
    Capabilities,
    Delivery,
    Fault,
    mapped,
    to_tensor,
)
from penstock.pipeline.loader.faults import BadSampleError, OnError, Replacer

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from penstock.core.contracts import Allocate, BatchTransform, Collate, Dataset, Sampler


class BatchComputer:
    """Compute batches; a batch depends on its task alone. Thread-safe if its components are.

    Args:
        dataset: Indexed data or a stream. Its own `collate`, if any, replaces `collate`.
        sampler: Maps positions to records; None for a stream.
        collate: Makes a batch from samples.
        seed: Seed of the run.
        on_error: Action on bad samples. A stream skips them under ``replace``.
        imports: Modules of the user's components; every worker imports them.
        steps: Steps for the images and masks of every batch, or None.
    """

    def __init__(
        self,
        dataset: Dataset | StreamDataset,
        *,
        sampler: Sampler | None,
        collate: Collate,
        seed: int,
        on_error: OnError,
        imports: tuple[str, ...] = (),
        steps: BatchTransform | None = None,
    ) -> None:
        self.can = Capabilities.of(dataset, sampler, collate)
        self.dataset: Any = dataset
        self.imports = imports
        self._collate = self.can.dataset.collate or collate
        self._by_sample = BySample(dataset)
        self._steps = steps
        self._looked = False
        self._on_error = on_error
        self._replacer: Replacer | None = None
        if sampler is not None and not isinstance(dataset, StreamDataset):
            self._replacer = Replacer(dataset, sampler, seed, same=self.can.sampler.same)

    @property
    def global_random(self) -> bool:
        """Whether a component draws from global random states and needs its own process."""
        return self.can.dataset.global_random or self.can.collate.global_random

    def __call__(self, task: BatchTask, *, allocate: Allocate | None = None) -> Delivery:
        """Compute one batch, with images in writable memory of `allocate(size_bytes)`, if given.

        Raise BadSampleError for a bad sample that must not be skipped. Exceptions of components get
        a note with key and position.
        """
        times = StageTimes()
        if task.asked is not None:
            times.ask(task.asked)
        if not task.positions.size:  # the sampler left it empty, or only other ranks have records
            return Delivery(task.number, None)
        if whole := self._whole_batch(task, times, allocate):
            return whole
        work = Work(times, partial(self._image_rows, task, allocate))
        rows = _Rows(task)
        for row, sample in enumerate(self._by_sample(task, work)):
            self._place(rows, row, sample)
        if not rows.samples:
            bad = rows.last_bad
            assert bad is not None, "a batch without rows"
            filler = None
            if self._replacer is not None:
                try:
                    filler, _ = self._replacer.replace(bad, task.epoch)
                except BadSampleError:
                    if self._on_error != "skip":
                        raise
            if filler is None:  # the loader fills the batch from the stream or leaves it out
                return Delivery(task.number, None, tuple(rows.faults), int(task.valid.sum()))
            rows.add(filler, False)
        start = time.perf_counter()
        batch = self._collated(task, rows, work.images, allocate)
        times.collate += time.perf_counter() - start
        batch = self._stepped(batch, times)
        count = self.can.collate.overhead
        real, padded = count(batch) if count is not None else (0, 0)
        return Delivery(
            task.number,
            batch,
            tuple(rows.faults),
            positions=int(task.valid.sum()),
            samples=sum(rows.valid),
            real=real,
            padded=padded,
            cut_texts=rows.cut_texts,
            cut_tokens=rows.cut_tokens,
            times=times,
        )

    def together(
        self, tasks: Sequence[BatchTask], *, allocate: Allocate | None = None
    ) -> list[Delivery]:
        """Compute several batches in one call, each equal to the batch computed alone.

        Return a delivery per task, the first with the times of all, or none if not possible.
        """
        times = StageTimes()
        made = self._whole_batch(joined(tasks), times, allocate)
        if made is None or made.batch is None:
            return []
        batches = split_rows(made.batch, [task.positions.size for task in tasks])
        deliveries = []
        for task, batch in zip(tasks, batches or (), strict=False):
            valid = int(task.valid.sum())
            deliveries.append(
                Delivery(
                    task.number,
                    batch,
                    positions=valid,
                    samples=valid,
                    times=times,
                    row_bytes=made.row_bytes,
                )
            )
            times = StageTimes()
        return deliveries

    def several(
        self, tasks: Sequence[BatchTask], *, allocate: Allocate | None = None
    ) -> list[Delivery | BaseException]:
        """Compute tasks, together if possible, up to the first that fails.

        Return deliveries, then the exception if a task failed. MemoryError is raised.
        """
        if len(tasks) > 1:
            with counted() as asked, suppress(BaseException):  # the task raises it again alone
                if together := self.together(tasks, allocate=allocate):
                    return [*together]
            tasks = [replace(tasks[0], asked=asked), *tasks[1:]]  # count the failed reads
            allocate = None
        outcomes: list[Delivery | BaseException] = []
        for task in tasks:
            try:
                outcomes.append(self(task, allocate=allocate))
            except MemoryError:
                raise
            except BaseException as error:
                return [*outcomes, error]
        return outcomes

    def _whole_batch(
        self, task: BatchTask, times: StageTimes, allocate: Allocate | None
    ) -> Delivery | None:
        """Make the batch from columns; return None if it must be made sample by sample."""
        stack = self.can.collate.columns
        if self.can.way != "columns" or stack is None or task.quarantined:
            return None
        start = time.perf_counter()
        with counted() as asked:
            columns = self.dataset.fetch_columns(
                task.indices, task.positions, task.epoch, allocate=allocate
            )
        times.ask(asked)
        if columns is None:
            return None
        taken = time.perf_counter()
        times.read += taken - start
        batch = stack(columns)
        times.collate += time.perf_counter() - taken
        valid = int(task.valid.sum())
        batch = self._completed(batch, task, task.valid.copy())
        batch = self._stepped(batch, times)
        return Delivery(
            task.number,
            batch,
            positions=valid,
            samples=valid,
            times=times,
            row_bytes=row_bytes(batch),
        )

    def _stepped(self, batch: Batch, times: StageTimes) -> Batch:
        if self._steps is None:
            return batch
        start = time.perf_counter()
        batch = on_pixels(self._steps, mapped(batch, to_tensor))
        times.transform += time.perf_counter() - start
        return batch

    def _image_rows(self, task: BatchTask, allocate: Allocate | None) -> NDArray[np.uint8] | None:
        """Return memory for the batch's images, uint8 [n, H, W, C]; None if unusable."""
        placed = task.items is not None or self.dataset.staged
        if not placed or self.can.collate.with_rows is None:
            return None
        shape = self.dataset.row_shape or self._shape_of_first(task)
        if shape is None:
            return None
        shape = (task.positions.size, *shape)
        if allocate is None:
            return np.empty(shape, np.uint8)
        count = math.prod(shape)
        return np.frombuffer(allocate(count), np.uint8, count).reshape(shape)

    def _shape_of_first(self, task: BatchTask) -> tuple[int, ...] | None:
        """Compute one sample, once, to learn the shape of images before the first batch."""
        if self._looked or task.items is not None or task.quarantined:
            return None
        self._looked = True
        with suppress(Exception):  # the batch itself reports the error
            self.dataset.fetch(task.indices[:1], task.positions[:1], task.epoch)
        shape: tuple[int, ...] | None = self.dataset.row_shape
        return shape

    def _place(self, rows: _Rows, row: int, sample: Sample | BadSample) -> None:
        """Add one sample to its batch; replace, skip or refuse a bad sample."""
        valid = bool(rows.task.valid[row])
        if not isinstance(sample, BadSample):
            rows.add(sample, valid)
        elif self._on_error == "raise":
            raise BadSampleError(
                f"{sample}; repair or remove it, or set loader.on_error (loader.eval_on_error "
                f"for evaluation) to skip"
            )
        elif self._on_error == "replace" and self._replacer is not None:
            other, index = self._replacer.replace(sample, rows.task.epoch)
            rows.add(other, valid)
            rows.report(sample, valid, f"replaced by index {index} ({other['key']})")
        else:
            rows.report(sample, valid, "skipped")

    def _collated(
        self,
        task: BatchTask,
        rows: _Rows,
        images: NDArray[np.uint8] | None,
        allocate: Allocate | None,
    ) -> Batch:
        can = self.can.collate
        try:
            if images is not None and can.with_rows is not None:
                batch = can.with_rows(rows.samples, images)
            elif allocate is not None and can.into is not None:
                batch = can.into(rows.samples, allocate)
            else:
                batch = self._collate(rows.samples)
        except Exception as error:
            first, last = task.positions[0], task.positions[-1]
            error.add_note(
                f"while collating batch {task.number} of epoch {task.epoch}, positions "
                f"{first} to {last}, first key {rows.samples[0].get('key')!r}"
            )
            raise
        return self._completed(batch, task, np.array(rows.valid, np.bool_))

    def _completed(self, batch: Batch, task: BatchTask, valid: NDArray[np.bool_]) -> Batch:
        """Add `valid` and `epoch`; raise ValueError if the collate did not return a dict."""
        if not isinstance(batch, MutableMapping):
            raise ValueError(
                f"{name_of(self._collate)} gave a {type(batch).__name__} for a batch, expected a "
                f"dict with a tensor or a list for each field: see Batch in core/sample.py"
            )
        if type(keys := batch.get("key")) is list:
            batch["key"] = Keys(keys)
        batch["valid"] = valid
        batch["epoch"] = np.full(valid.size, task.epoch)
        return batch


@dataclass(slots=True)
class _Rows:
    task: BatchTask
    samples: list[Sample] = field(default_factory=list)
    valid: list[bool] = field(default_factory=list)
    faults: list[Fault] = field(default_factory=list)
    cut_texts: int = 0
    cut_tokens: int = 0
    last_bad: BadSample | None = None

    def add(self, sample: Sample, valid: bool) -> None:
        cut_tokens = sample.pop(CUT_TOKENS, 0)
        if valid and cut_tokens:
            self.cut_texts += 1
            self.cut_tokens += cut_tokens
        self.samples.append(sample)
        self.valid.append(valid)

    def report(self, bad: BadSample, valid: bool, action: str) -> None:
        """Record a bad sample and the action taken."""
        self.last_bad = bad
        # A padding row repeats a position; its valid row reports the fault.
        if valid:
            epoch = self.task.epoch
            self.faults.append(
                Fault(epoch, bad.position, bad.index, bad.key, bad.storage, bad.cause, action)
            )
