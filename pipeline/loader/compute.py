"""Compute the batch of a task, in any process: from columns, or sample by sample."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, MutableMapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cache, partial
from itertools import accumulate, pairwise
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from penstock.core.contracts import Collate, FunctionCollate, StreamDataset
from penstock.core.sample import CUT_TOKENS, BadSample, Batch, Keys, Sample
from penstock.core.stage_times import counted
from penstock.pipeline.loader.contract import (
    BatchStats,
    BatchTask,
    Delivery,
    Fault,
    mapped,
    to_tensor,
)
from penstock.pipeline.loader.faults import BadSampleError, OnError, Replacer

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from penstock.core.contracts import Allocate, BatchTransform, Dataset, Sampler

    Images = Callable[[], NDArray[np.uint8] | None]
    """Returns memory for the images of a batch, uint8 [n, H, W, C], or None."""

Made = list[Sample | BadSample]
"""A sample for each row, or why it is bad."""
Way = Literal["sample", "columns", "stream"]
"""Ways to make a batch: sample by sample, as columns, or from the items of a stream."""

BUNDLE_BYTES = 6 << 20
"""Size of a bundle at most, unless a single batch is larger.

A batch costs about 0.2 ms of Python, as much as copying 1 MB of rows. Bundles of 12 MB gained
nothing more.
"""
MOST_BATCHES = 16
"""Batches in a bundle at most."""
_PIECE_BYTES = 2 << 20
_QUARANTINED = "quarantined: it killed the worker that computed it"


class BatchComputer:
    """Compute batches; a batch depends on its task alone. Thread-safe if its components are.

    Args:
        dataset: Indexed data or a stream. Its own `collate`, if any, replaces `collate`.
        sampler: Maps positions to records; None for a stream.
        on_error: Action on bad samples. A stream skips them under ``replace``.
        imports: Modules of the user's components; every worker imports them.
        steps: Steps for the images and masks of every batch, or None.
    """

    def __init__(
        self,
        dataset: Dataset | StreamDataset,
        *,
        sampler: Sampler | None,
        collate: Callable[[list[Sample]], Batch],
        seed: int,
        on_error: OnError,
        imports: tuple[str, ...] = (),
        steps: BatchTransform | None = None,
    ) -> None:
        self.dataset: Any = dataset
        self.imports = imports
        self._collate = collate if isinstance(collate, Collate) else FunctionCollate(collate)
        self.way: Way = "sample"
        if isinstance(dataset, StreamDataset):
            self.way = "stream"
        elif dataset.columnar and self._collate.columnar:
            self.way = "columns"
        self._steps = steps
        self._on_error = on_error
        self._replacer: Replacer | None = None
        if sampler is not None and not isinstance(dataset, StreamDataset):
            self._replacer = Replacer(dataset, sampler, seed, same=sampler.same)

    @property
    def global_random(self) -> bool:
        """Whether a component draws from global random states and needs its own process."""
        return bool(self.dataset.global_random or self._collate.global_random)

    # One task, or several.

    def __call__(self, task: BatchTask, *, allocate: Allocate | None = None) -> Delivery:
        """Compute one batch, with images in writable memory of `allocate(size_bytes)`, if given.

        Raise BadSampleError for a bad sample that must not be skipped.
        """
        stats = BatchStats()
        if task.asked is not None:
            stats.ask(task.asked)
        if not task.positions.size:  # the sampler left it empty, or only other ranks have records
            return Delivery(task.number, None)
        if delivery := self._from_columns(task, stats, allocate):
            return delivery
        return self._from_samples(task, stats, allocate)

    def several(
        self, tasks: Sequence[BatchTask], *, allocate: Allocate | None = None
    ) -> list[Delivery | BaseException]:
        """Compute tasks, together if possible, up to the first that fails.

        Return deliveries, then the exception if a task failed, with a note that names the sample.
        MemoryError is raised.
        """
        if len(tasks) > 1:
            with counted() as asked, suppress(BaseException):  # the task raises it again alone
                if together := self._together(tasks, allocate):
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
                if isinstance(error, Exception) and not isinstance(error, BadSampleError):
                    error.add_note(f"while computing {self._failing(task)}")
                return [*outcomes, error]
        return outcomes

    def _together(self, tasks: Sequence[BatchTask], allocate: Allocate | None) -> list[Delivery]:
        """Compute several batches as one, each equal to the batch computed alone.

        Return a delivery per task, the first with the times of all, or none if not possible.
        """
        made = self._from_columns(joined(tasks), BatchStats(), allocate)
        batches = made and made.batch and split_rows(made.batch, [t.positions.size for t in tasks])
        if not (made and batches):
            return []
        deliveries: list[Delivery] = []
        for task, batch in zip(tasks, batches, strict=True):
            stats = BatchStats() if deliveries else made.stats
            stats.samples = valid = int(task.valid.sum())
            deliveries.append(
                replace(made, number=task.number, batch=batch, positions=valid, stats=stats)
            )
        return deliveries

    # From columns.

    def _from_columns(
        self, task: BatchTask, stats: BatchStats, allocate: Allocate | None
    ) -> Delivery | None:
        """Make the batch from columns; return None if it must be made sample by sample."""
        if self.way != "columns" or task.quarantined:
            return None
        start = time.perf_counter()
        with counted() as asked:
            columns = self.dataset.fetch_columns(
                task.indices, task.positions, task.epoch, allocate=allocate
            )
        stats.ask(asked)
        if columns is None:
            return None
        taken = time.perf_counter()
        stats.read += taken - start
        batch = self._collate.columns(columns)
        stats.collate += time.perf_counter() - taken
        batch = self._completed(batch, task, task.valid.copy(), stats)
        return Delivery(
            task.number, batch, (), stats.samples, stats=stats, row_bytes=row_bytes(batch)
        )

    def _completed(
        self, batch: Batch, task: BatchTask, valid: NDArray[np.bool_], stats: BatchStats
    ) -> Batch:
        """Add `valid` and `epoch`, count the valid rows, and apply the steps."""
        if not isinstance(batch, MutableMapping):
            raise ValueError(
                f"the collate gave a {type(batch).__name__} for a batch, expected a dict with "
                f"a tensor or a list for each field: see Batch in core/sample.py"
            )
        for name in ("valid", "epoch"):
            if name in batch:
                raise ValueError(
                    f"the data has a field {name!r}, a name for values of the loader; rename it: "
                    f"dataset.keys={{{name}:{name}_}}"
                )
        if type(keys := batch.get("key")) is list:
            batch["key"] = Keys(keys)
        batch["valid"] = valid
        batch["epoch"] = np.full(valid.size, task.epoch)
        stats.samples = int(valid.sum())
        if self._steps is not None:
            start = time.perf_counter()
            batch = self._steps(mapped(batch, to_tensor))
            stats.transform += time.perf_counter() - start
        return batch

    # From samples.

    def _from_samples(
        self, task: BatchTask, stats: BatchStats, allocate: Allocate | None
    ) -> Delivery:
        """Make the samples of a batch, replace or skip the bad ones, and collate the rest."""
        images = cache(partial(self._image_rows, task, allocate))
        rows = _Rows(task, stats)
        for row, sample in enumerate(self._samples(task, stats, images)):
            self._place(rows, row, sample)
        positions = int(task.valid.sum())
        if not rows.samples:
            filler = self._filler(rows)
            if filler is None:  # the loader fills the batch from the stream or leaves it out
                return Delivery(task.number, None, tuple(rows.faults), positions)
            rows.add(filler, False)
        start = time.perf_counter()
        batch = self._collate.into(rows.samples, rows=images(), allocate=allocate)
        stats.collate += time.perf_counter() - start
        batch = self._completed(batch, task, np.array(rows.valid, np.bool_), stats)
        if self._collate.overhead is not None:
            stats.real, stats.padded = self._collate.overhead(batch)
        return Delivery(task.number, batch, tuple(rows.faults), positions, stats=stats)

    def _image_rows(self, task: BatchTask, allocate: Allocate | None) -> NDArray[np.uint8] | None:
        """Return memory for the batch's images, uint8 [n, H, W, C]; None if unusable."""
        placed = task.items is not None or self.dataset.staged
        if not placed or not self._collate.in_place:
            return None
        if self.dataset.row_shape is None:  # before the first image
            return None
        shape = (task.positions.size, *self.dataset.row_shape)
        if allocate is None:
            return np.empty(shape, np.uint8)
        count = math.prod(shape)
        return np.frombuffer(allocate(count), np.uint8, count).reshape(shape)

    def _samples(self, task: BatchTask, stats: BatchStats, images: Images) -> Made:
        """Return a sample or `BadSample` per row."""
        held = np.isin(task.positions, np.asarray(task.quarantined, np.int64))
        rows = np.flatnonzero(~held)
        made = iter(self._made(task, rows, stats, images) if rows.size else ())
        return [self._quarantined(task, row) if out else next(made) for row, out in enumerate(held)]

    def _made(self, task: BatchTask, rows: Any, stats: BatchStats, images: Images) -> Made:
        """Make the samples of some rows of a task."""
        positions, epoch = task.positions[rows], task.epoch
        made: Made = []
        if len(rows) < task.positions.size:  # quarantined rows leave gaps; collating copies
            images = _no_images
        if task.items is not None:
            items = [task.items[row] for row in rows]
            made += self.dataset.fetch_items(items, positions, epoch, rows=images(), times=stats)
            return made
        indices, sizes = task.indices[rows], self.dataset.held_bytes
        if not self.dataset.staged:
            start = time.perf_counter()
            with counted() as asked:
                made += self.dataset.fetch(indices, positions, epoch)
            stats.read += time.perf_counter() - start
            stats.ask(asked)
            return made
        # Read, then decode, in pieces that bound the encoded bytes in memory.
        for piece in pieces_of(None if sizes is None else sizes(indices), indices.size):
            start = time.perf_counter()
            with counted() as asked:
                records = self.dataset.read(indices[piece], positions[piece], epoch)
            stats.read += time.perf_counter() - start
            stats.ask(asked)
            memory = images()  # after the first read
            into = None if memory is None else memory[piece]
            made += self.dataset.finish(records, positions[piece], epoch, rows=into, times=stats)
            del records  # free before the next read
        return made

    def _failing(self, task: BatchTask) -> str:
        """Name the sample that raises, found by computing each sample alone."""
        for row, position in enumerate(task.positions.tolist()):
            if position in task.quarantined:
                continue
            try:
                self._made(task, np.array([row]), BatchStats(), _no_images)
            except Exception:
                key = self._key(task, row)
                return f"{key!r} at position {position} of epoch {task.epoch}, batch {task.number}"
        return f"batch {task.number} of epoch {task.epoch}: each of its samples alone is fine"

    def _quarantined(self, task: BatchTask, row: int) -> BadSample:
        index = int(task.indices[row]) if task.items is None else -1
        return BadSample(
            index, self._key(task, row), int(task.positions[row]), _QUARANTINED, "loader"
        )

    def _key(self, task: BatchTask, row: int) -> str:
        if task.items is not None:
            return f"item {task.positions[row]}"
        key: str = self.dataset.index.keys(task.indices[row : row + 1])[0]
        return key

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
            other, index = self._replacer.replace(sample, rows.task)
            rows.add(other, valid)
            rows.report(sample, valid, f"replaced by index {index} ({other['key']})")
        else:
            rows.report(sample, valid, "skipped")

    def _filler(self, rows: _Rows) -> Sample | None:
        """Return a sample for the one invalid row of a batch whose samples are all bad."""
        assert rows.last_bad is not None, "a batch without rows"
        if self._replacer is None:
            return None
        try:
            return self._replacer.replace(rows.last_bad, rows.task)[0]
        except BadSampleError:
            if self._on_error != "skip":
                raise
            return None


@dataclass(slots=True)
class _Rows:
    """The rows of a batch so far."""

    task: BatchTask
    stats: BatchStats
    samples: list[Sample] = field(default_factory=list)
    valid: list[bool] = field(default_factory=list)
    faults: list[Fault] = field(default_factory=list)
    last_bad: BadSample | None = None

    def add(self, sample: Sample, valid: bool) -> None:
        cut_tokens = sample.pop(CUT_TOKENS, 0)
        if valid and cut_tokens:
            self.stats.cut_texts += 1
            self.stats.cut_tokens += cut_tokens
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


def _no_images() -> None:
    """Let the data set allocate each image."""


def pieces_of(sizes: NDArray[Any] | None, count: int) -> list[slice]:
    """Cut the records of a batch, by their sizes in bytes [n], into runs of about 2 MB.

    Uncut, a batch of 128 photographs of 5 MB takes 640 MB of encoded bytes in each worker.
    """
    if sizes is None:
        return [slice(0, count)]
    ends = np.cumsum(sizes, dtype=np.int64)
    # A record belongs to the piece that contains its middle byte.
    middles = ends - np.diff(ends, prepend=0) // 2
    cuts = np.flatnonzero(np.diff(middles // _PIECE_BYTES)) + 1
    return [slice(start, stop) for start, stop in pairwise([0, *cuts.tolist(), count])]


def can_join(first: BatchTask, task: BatchTask) -> bool:
    """Return whether two tasks of columns can be computed together."""
    is_quarantined = first.quarantined or task.quarantined
    return first.epoch == task.epoch and bool(task.positions.size) and not is_quarantined


def joined(tasks: Sequence[BatchTask]) -> BatchTask:
    """Return one task with all rows of several tasks, numbered as the first."""
    return replace(
        tasks[0],
        positions=np.concatenate([task.positions for task in tasks]),
        valid=np.concatenate([task.valid for task in tasks]),
        indices=np.concatenate([task.indices for task in tasks]),
    )


def row_bytes(batch: Batch) -> int:
    """Return the bytes per row of a batch's tensors, at least 1."""
    columns = [value for value in batch.values() if hasattr(value, "nbytes") and len(value)]
    return max(1, sum(column.nbytes // len(column) for column in columns))


def split_rows(batch: Batch, sizes: Sequence[int]) -> list[Batch] | None:
    """Split a batch into views of these sizes; return None if a field lacks that many rows."""
    count = sum(sizes)
    for value in batch.values():
        is_column = hasattr(value, "nbytes") or isinstance(value, list | Keys)
        if not is_column or len(value) != count:
            return None
    bounds = pairwise(accumulate(sizes, initial=0))
    return [{field: value[start:stop] for field, value in batch.items()} for start, stop in bounds]
