"""A batch task to a batch: read, decode, transform, collate, and faults. Runs in any process."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from datasets.encoded import on_pixels
from datasets.protocols import StreamDataset
from datasets.sample import BadSample, Batch, Sample
from datasets.stage_times import StageTimes
from pipeline.loader.bundles import joined, row_bytes, split_rows
from pipeline.loader.contract import BatchTask, Delivery
from pipeline.loader.faults import BadSampleError, OnError, Replacer
from pipeline.loader.fetching import SampleFetcher
from pipeline.loader.whole_batches import WholeBatches, completed
from pipeline.loader.work import Rows, Spread, Work

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from datasets.protocols import Collate, Dataset, RowTransform, Sampler


class BatchComputer:
    """Computes batches: a function of the task alone, whoever calls it.

    Pickles as its parts. Safe to call from several threads where its parts are.

    Args:
        dataset: Indexed data or a stream.
        sampler: Which record stands at a position; None for a stream.
        collate: Samples to a batch. A dataset with a `collate` of its own (a user's
            ``collate_fn``) uses that.
        seed: The run's seed.
        on_error: What happens to bad samples. A stream cannot read elsewhere: it skips where
            it should replace.
        imports: Modules of the user's components, to be loaded in every worker.
        steps: What is done to images and masks of every batch, or None.

    Attributes:
        row_bytes: What a row takes of the batches that are made as a whole, and so can be made
            together; 0 before the first one.
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
        steps: RowTransform | None = None,
    ) -> None:
        self.dataset: Any = dataset  # of which kind, the task says
        self.imports = imports
        self._collate: Collate = getattr(dataset, "collate", None) or collate
        self._fetch = SampleFetcher(dataset)
        self._whole = WholeBatches(dataset, self._collate, steps)
        self._steps = steps
        self.row_bytes = 0
        self._looked = False
        self._on_error = on_error
        self._replacer: Replacer | None = None
        if sampler is not None and not isinstance(dataset, StreamDataset):
            self._replacer = Replacer(dataset, sampler, seed)

    @property
    def global_random(self) -> bool:
        """Whether a part draws from global random states, and so needs a process of its own."""
        return any(getattr(part, "global_random", False) for part in (self.dataset, self._collate))

    def __call__(
        self,
        task: BatchTask,
        *,
        records: Sequence[Any] | None = None,
        times: StageTimes | None = None,
        allocate: Callable[[int], Any] | None = None,
        spread: Spread | None = None,
    ) -> Delivery:
        """Compute one batch.

        Args:
            task: What to compute.
            records: What the dataset's `read` gave for the task's indices, if it was read ahead.
            times: What reading ahead took; the delivery's times are added to it.
            allocate: Gives a writable buffer of so many bytes for the batch's images; None takes
                ordinary memory.
            spread: Has a function computed of pieces, in several threads, and gives the results
                in order; None computes here.

        Raises:
            BadSampleError: A sample is bad and may not be replaced or skipped.
            Exception: Whatever a component raised, with a note that names key and position.
        """
        times = times or StageTimes()
        if records is None and (whole := self._whole_batch(task, times, allocate)):
            return whole
        work = Work(
            records,
            times,
            allocate=partial(self._image_rows, task, allocate),
            spread=spread if self.spreads else None,
        )
        rows = Rows(task)
        for row, sample in enumerate(self._fetch(task, work)):
            self._place(rows, row, sample)
        if not rows.samples and not self._fill(rows):
            return Delivery(task.number, None, tuple(rows.faults), int(task.valid.sum()))
        start = time.perf_counter()
        batch = self._collated(task, rows, work.images, allocate)
        work.times.collate += time.perf_counter() - start
        batch = self._stepped(batch, work.times)
        real, padded = getattr(self._collate, "overhead", _no_overhead)(batch)
        return Delivery(
            task.number,
            batch,
            tuple(rows.faults),
            positions=int(task.valid.sum()),
            samples=sum(rows.valid),
            real=real,
            padded=padded,
            times=work.times,
        )

    def together(
        self, tasks: Sequence[BatchTask], *, allocate: Callable[[int], Any] | None = None
    ) -> list[Delivery]:
        """Compute several batches in one go, each of them what it would be alone.

        Args:
            tasks: Tasks that `pipeline.loader.bundles.can_join` allows to be joined.
            allocate: As in a call; asked for memory of all of them.

        Returns:
            A delivery for each; the first one has the times of all. None of them where they
            cannot be made so: then they are to be computed one by one.

        Raises:
            Exception: Whatever a component raised, for any of them.
        """
        times = StageTimes()
        made = self._whole_batch(joined(tasks), times, allocate)
        sizes = [task.positions.size for task in tasks]
        batches = made and made.batch and split_rows(made.batch, sizes)
        deliveries = []
        for task, batch in zip(tasks, batches or (), strict=False):
            valid = int(task.valid.sum())
            deliveries.append(
                Delivery(task.number, batch, positions=valid, samples=valid, times=times)
            )
            times = StageTimes()
        return deliveries

    @property
    def spreads(self) -> bool:
        """Whether several threads can compute the samples of one batch."""
        return self._fetch.staged and not self.global_random

    @property
    def reads_apart(self) -> bool:
        """Whether `read` gives records."""
        return self._fetch.staged and not self._whole.likely

    def read(self, task: BatchTask) -> Sequence[Any] | None:
        """The records of a task, to be computed later; None where reading is not apart."""
        if task.items is not None or not self.reads_apart:
            return None
        return self._fetch.read(task.indices, task.positions, task.epoch)

    def _whole_batch(
        self, task: BatchTask, times: StageTimes, allocate: Callable[[int], Any] | None
    ) -> Delivery | None:
        """The batch made as a whole; None where its samples must be made one by one."""
        batch = self._whole(task, times=times, allocate=allocate)
        if batch is None:
            return None
        valid = int(task.valid.sum())
        batch = completed(batch, task, task.valid.copy(), collate=self._collate)
        if not self._whole.has_steps:
            batch = self._stepped(batch, times)
        self.row_bytes = self.row_bytes or row_bytes(batch)
        return Delivery(task.number, batch, positions=valid, samples=valid, times=times)

    def _stepped(self, batch: Batch, times: StageTimes) -> Batch:
        """The batch with its images and masks changed."""
        if self._steps is None:
            return batch
        start = time.perf_counter()
        batch = on_pixels(self._steps, batch)
        times.transform += time.perf_counter() - start
        return batch

    def _image_rows(
        self, task: BatchTask, allocate: Callable[[int], Any] | None
    ) -> NDArray[np.uint8] | None:
        """Memory for the images of the batch, uint8 [n, H, W, C], where they can be put into it."""
        placed = self._fetch.staged or task.items is not None
        if not placed or not hasattr(self._collate, "with_rows"):
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
        """The shape of images, of a sample that is computed for it alone, once.

        So the first batch too is written where it is to be, and not copied there.
        """
        if self._looked or task.items is not None or task.quarantined:
            return None
        self._looked = True
        with suppress(Exception):  # whatever is wrong is said when the batch is computed
            self.dataset.fetch(task.indices[:1], task.positions[:1], task.epoch)
        shape: tuple[int, ...] | None = self.dataset.row_shape
        return shape

    def _place(self, rows: Rows, row: int, sample: Sample | BadSample) -> None:
        """Put one fetched sample into its batch, or do with a bad one what is asked for."""
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

    def _fill(self, rows: Rows) -> bool:
        """Give an empty batch one row marked invalid; False if it may be left out instead."""
        task, bad = rows.task, rows.last_bad
        assert bad is not None, "a batch without rows"
        if self._replacer is not None:
            rows.add(self._replacer.replace(bad, task.epoch)[0], False)
            return True
        if task.solo:
            return False
        raise BadSampleError(
            f"{bad}; with it all samples of this rank in batch {task.number} are bad, and a "
            f"stream cannot be read elsewhere: use a larger loader.batch_size or repair the data"
        )

    def _collated(
        self,
        task: BatchTask,
        rows: Rows,
        images: NDArray[np.uint8] | None,
        allocate: Callable[[int], Any] | None,
    ) -> Batch:
        collate: Any = self._collate
        try:
            if images is not None:
                batch = collate.with_rows(rows.samples, images)
            elif allocate is not None and hasattr(collate, "into"):
                batch = collate.into(rows.samples, allocate)
            else:
                batch = collate(rows.samples)
        except Exception as error:
            first, last = task.positions[0], task.positions[-1]
            error.add_note(
                f"while collating batch {task.number} of epoch {task.epoch}, positions "
                f"{first} to {last}, first key {rows.samples[0].get('key')!r}"
            )
            raise
        return completed(batch, task, np.array(rows.valid, np.bool_), collate=collate)


def _no_overhead(batch: Batch) -> tuple[int, int]:
    return 0, 0
