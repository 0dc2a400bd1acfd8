"""Make a batch sample by sample: read, decode and transform records or items of a stream."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np

from penstock.core.sample import BadSample, Sample
from penstock.core.stage_times import StageTimes
from penstock.pipeline.loader.contract import BatchTask

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from penstock.core.contracts import Dataset

_PIECE_BYTES = 2 << 20
_QUARANTINED = "quarantined: it killed the worker that computed it"


@dataclass
class Work:
    """Stage times of one batch, and memory for its images, uint8 [n, H, W, C], or None."""

    times: StageTimes
    allocate: Callable[[], NDArray[np.uint8] | None] = lambda: None

    @cached_property
    def images(self) -> NDArray[np.uint8] | None:
        """Memory for the images, allocated on first use: after the first read."""
        return self.allocate()


class BySample:
    """Make the samples of a task from indexed data or a stream."""

    def __init__(self, dataset: Any) -> None:
        self._dataset = dataset  # the task tells which of the two

    def __call__(self, task: BatchTask, work: Work) -> list[Sample | BadSample]:
        """Return a sample or `BadSample` per row; exceptions get a note with key and position."""
        rows = np.arange(task.positions.size)
        if not task.quarantined:
            return self._noted(task, rows, work)
        held = np.isin(task.positions, np.asarray(task.quarantined, np.int64))
        made = iter(self._noted(task, rows[~held], work) if not held.all() else [])
        return [self._quarantined(task, row) if held[row] else next(made) for row in rows.tolist()]

    def _quarantined(self, task: BatchTask, row: int) -> BadSample:
        index = int(task.indices[row]) if task.items is None else -1
        position = int(task.positions[row])
        return BadSample(index, self._key(task, row), position, _QUARANTINED, "loader")

    def _noted(self, task: BatchTask, rows: Any, work: Work) -> list[Sample | BadSample]:
        try:
            return self._made(task, rows, work)
        except Exception as error:
            error.add_note(f"while computing {self._failing(task, rows)}")
            raise

    def _failing(self, task: BatchTask, rows: Any) -> str:
        """Name the sample that raises, found by computing each sample alone."""
        for row in rows.tolist():
            try:
                self._made(task, np.array([row]), Work(StageTimes()))
            except Exception:
                return (
                    f"{self._key(task, row)!r} at position {task.positions[row]} of epoch "
                    f"{task.epoch} (batch {task.number})"
                )
        return f"batch {task.number} of epoch {task.epoch}: each of its samples alone is fine"

    def _key(self, task: BatchTask, row: int) -> str:
        if task.items is not None:
            return f"item {task.positions[row]}"
        key: str = self._dataset.index.keys(task.indices[row : row + 1])[0]
        return key

    def _made(self, task: BatchTask, rows: Any, work: Work) -> list[Sample | BadSample]:
        # Quarantined rows leave gaps; the collate then copies the images.
        whole = len(rows) == task.positions.size
        positions = task.positions[rows]
        made: list[Sample | BadSample]
        if task.items is not None:
            items = [task.items[row] for row in rows]
            made = self._dataset.fetch_items(
                items, positions, task.epoch, rows=work.images if whole else None, times=work.times
            )
        elif not self._dataset.staged:
            made = self._dataset.fetch(task.indices[rows], positions, task.epoch)
        else:
            made = self._in_stages(self._dataset, task, rows, work)
        return made

    def _in_stages(
        self, dataset: Dataset, task: BatchTask, rows: Any, work: Work
    ) -> list[Sample | BadSample]:
        """Read, then decode, in pieces that bound the encoded bytes in memory."""
        indices, positions = task.indices[rows], task.positions[rows]
        whole = len(rows) == task.positions.size
        pieces = [slice(0, len(rows))]
        if dataset.held_bytes is not None:
            pieces = pieces_of(dataset.held_bytes(indices), indices.size)
        made: list[Sample | BadSample] = []
        for piece in pieces:
            start = time.perf_counter()
            records = dataset.read(indices[piece], positions[piece], task.epoch)
            work.times.read += time.perf_counter() - start
            work.times.count(records)
            images = work.images if whole else None  # allocated after the first read
            into = None if images is None else images[piece]
            made += dataset.finish(
                records, positions[piece], task.epoch, rows=into, times=work.times
            )
            del records  # free before the next read
        return made


def pieces_of(sizes: NDArray[Any] | None, count: int) -> list[slice]:
    """Cut the records of a batch, by their sizes in bytes [n], into runs of about 2 MB.

    Uncut, a batch of 128 photographs of 5 MB takes 640 MB of encoded bytes in each worker.
    """
    whole = [slice(0, count)]
    if sizes is None:
        return whole
    ends = np.cumsum(sizes, dtype=np.int64)
    if not ends.size or ends[-1] <= _PIECE_BYTES:
        return whole
    # A record belongs to the piece that contains its middle byte.
    middles = ends - np.diff(ends, prepend=0) // 2
    cuts = np.flatnonzero(np.diff(middles // _PIECE_BYTES)) + 1
    return [slice(start, stop) for start, stop in pairwise([0, *cuts.tolist(), count])]
