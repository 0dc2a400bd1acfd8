"""A batch while it is computed: what it is computed with, and its rows as they come together."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

from datasets.sample import BadSample, Sample
from datasets.stage_times import StageTimes
from pipeline.loader.contract import BatchTask, Fault

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from datasets.protocols import StagedDataset

PIECE_ROWS = 8
"""Rows that a thread takes at a time from a batch that several compute."""

Spread = Callable[[Callable[[slice], Any], Sequence[slice]], list[Any]]
"""Has a function computed of every piece, in several threads; the results in order."""


@dataclass
class Work:
    """What a batch is computed with.

    Attributes:
        records: What was read ahead, a record for each row; None: nothing was.
        times: Added to while the batch is computed.
        allocate: Gives memory for the batch's images, uint8 [n, H, W, C], or None.
        spread: Has pieces computed in several threads, or None.
    """

    records: Sequence[Any] | None
    times: StageTimes
    allocate: Callable[[], NDArray[np.uint8] | None] = lambda: None
    spread: Spread | None = None

    @cached_property
    def images(self) -> NDArray[np.uint8] | None:
        """Memory for the batch's images, asked for where it is first needed: not while reading."""
        return self.allocate()


@dataclass(slots=True)
class Rows:
    """The rows of a batch while they come together."""

    task: BatchTask
    samples: list[Sample] = field(default_factory=list)
    valid: list[bool] = field(default_factory=list)
    faults: list[Fault] = field(default_factory=list)
    last_bad: BadSample | None = None

    def add(self, sample: Sample, valid: bool) -> None:
        """Append a row."""
        self.samples.append(sample)
        self.valid.append(valid)

    def report(self, bad: BadSample, valid: bool, action: str) -> None:
        """Note a bad sample and what was done about it."""
        self.last_bad = bad
        # Rows that only fill the batch repeat a position that is reported where it is valid.
        if valid:
            epoch = self.task.epoch
            self.faults.append(
                Fault(epoch, bad.position, bad.index, bad.key, bad.storage, bad.cause, action)
            )


def finished_together(
    dataset: StagedDataset,
    taken: Callable[[slice, StageTimes], Sequence[Any]],
    cut: Sequence[slice],
    positions: NDArray[np.int64],
    epoch: int,
    *,
    images: NDArray[np.uint8] | None,
    spread: Spread,
    times: StageTimes,
) -> list[Sample | BadSample]:
    """What one call of the dataset's `finish` gives, in pieces that several threads compute.

    Args:
        dataset: Finishes the records.
        taken: Gives the records of a piece, and adds to the times if it reads them for that.
        cut: Pieces that are the batch; those of more than `PIECE_ROWS` rows are cut further.
        positions: int64 [n].
        epoch: The epoch.
        images: Memory for their images, uint8 [n, H, W, C], or None.
        spread: Has them computed, in several threads.
        times: Added to.
    """

    def finished(piece: slice) -> tuple[list[Sample | BadSample], StageTimes]:
        its_times = StageTimes()
        rows = None if images is None else images[piece]
        records = taken(piece, its_times)
        samples = dataset.finish(records, positions[piece], epoch, rows=rows, times=its_times)
        return samples, its_times

    pieces = [
        slice(start, min(start + PIECE_ROWS, piece.stop))
        for piece in cut
        for start in range(piece.start, piece.stop, PIECE_ROWS)
    ]
    outcomes = spread(finished, pieces)
    for _, its_times in outcomes:
        times.add(its_times)
    return [sample for samples, _ in outcomes for sample in samples]
