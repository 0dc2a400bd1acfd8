"""The samples of a task's rows: read, decoded and transformed by its dataset."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from datasets.sample import BadSample, Sample
from datasets.stage_times import StageTimes
from datasets.staged import is_staged
from pipeline.loader.contract import BatchTask
from pipeline.loader.pieces import pieces_of
from pipeline.loader.work import PIECE_ROWS, Work, finished_together

_QUARANTINED = "quarantined: it killed the worker that computed it"


class SampleFetcher:
    """Has a dataset make the samples of a task.

    Args:
        dataset: Indexed data or a stream.

    Attributes:
        staged: Reading is apart, and images can be put into the rows of their batch.
    """

    def __init__(self, dataset: Any) -> None:
        self._dataset = dataset  # of which kind, the task says
        self.staged = is_staged(dataset)

    def __call__(self, task: BatchTask, work: Work) -> list[Sample | BadSample]:
        """The sample of each row of a task, or why there is none.

        Raises:
            Exception: Whatever a component raised, with a note that names key and position.
        """
        rows = np.arange(task.positions.size)
        held = np.isin(task.positions, np.asarray(task.quarantined, np.int64))
        if not held.any():
            return self._fetch_rows(task, rows, work)
        fetched = iter(self._fetch_rows(task, rows[~held], work) if not held.all() else [])
        return [
            self._quarantined(task, row) if held[row] else next(fetched) for row in rows.tolist()
        ]

    def _quarantined(self, task: BatchTask, row: int) -> BadSample:
        index = int(task.indices[row]) if task.items is None else -1
        position = int(task.positions[row])
        return BadSample(index, self._key(task, row), position, _QUARANTINED, "loader")

    def _fetch_rows(self, task: BatchTask, rows: Any, work: Work) -> list[Sample | BadSample]:
        try:
            return self._call(task, rows, work)
        except Exception as error:
            error.add_note(f"while computing {self._failing(task, rows)}")
            raise

    def _failing(self, task: BatchTask, rows: Any) -> str:
        """Which sample raises. They are pure, so computing them one by one finds it."""
        for row in rows.tolist():
            try:
                self._call(task, np.array([row]), Work(None, StageTimes()))
            except Exception:
                return (
                    f"{self._key(task, row)!r} at position {task.positions[row]} of epoch "
                    f"{task.epoch} (batch {task.number})"
                )
        return f"batch {task.number} of epoch {task.epoch}: each of its samples alone is fine"

    def _call(self, task: BatchTask, rows: Any, work: Work) -> list[Sample | BadSample]:
        positions = task.positions[rows]

        def images(piece: slice = slice(None)) -> NDArray[np.uint8] | None:
            # Rows of the batch that are held back leave a gap, and then the images are collated.
            if len(rows) < task.positions.size or work.images is None:
                return None
            return work.images[piece]

        if task.items is not None:
            items = [task.items[row] for row in rows]
            return self._dataset.fetch_items(
                items, positions, task.epoch, rows=images(), times=work.times
            )
        if not self.staged:
            return self._dataset.fetch(task.indices[rows], positions, task.epoch)
        if work.records is not None:
            given = [work.records[row] for row in rows.tolist()]
            return self._finish(given, positions, task.epoch, images(), work)
        indices = task.indices[rows]

        def taken(piece: slice, times: StageTimes) -> Sequence[Any]:
            start = time.perf_counter()
            records = self.read(indices[piece], positions[piece], task.epoch)
            times.read += time.perf_counter() - start
            times.count(records)
            return records

        cut = pieces_of(self._dataset, indices)
        if work.spread is not None and len(cut) > 1:  # each thread reads what it finishes
            return finished_together(
                self._dataset,
                taken,
                cut,
                positions,
                task.epoch,
                images=images(),
                spread=work.spread,
                times=work.times,
            )
        samples: list[Sample | BadSample] = []
        for piece in cut:  # it is read before memory is asked for, and let go before the next one
            samples += self._finish(
                taken(piece, work.times), positions[piece], task.epoch, images(piece), work
            )
        return samples

    def _finish(
        self,
        records: Sequence[Any],
        positions: Any,
        epoch: int,
        images: NDArray[np.uint8] | None,
        work: Work,
    ) -> list[Sample | BadSample]:
        """The samples of records that were read, put into `images`."""
        if work.spread is None or len(records) <= PIECE_ROWS:
            return self._dataset.finish(records, positions, epoch, rows=images, times=work.times)

        def taken(piece: slice, times: StageTimes) -> Sequence[Any]:
            return records[piece]

        return finished_together(
            self._dataset,
            taken,
            [slice(0, len(records))],
            positions,
            epoch,
            images=images,
            spread=work.spread,
            times=work.times,
        )

    def read(self, indices: Any, positions: Any, epoch: int) -> Sequence[Any]:
        """The records at `indices`, where reading is apart."""
        if getattr(self._dataset, "needs_partners", False):
            return self._dataset.read(indices, positions=positions, epoch=epoch)
        return self._dataset.read(indices)

    def _key(self, task: BatchTask, row: int) -> str:
        if task.items is not None:
            return f"item {task.positions[row]}"
        return self._dataset.index.keys(task.indices[row : row + 1])[0]
