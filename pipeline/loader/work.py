"""A batch while it is computed: what it is computed with, and its rows as they come together."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
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


@dataclass(slots=True)
class Work:
    """What a batch is computed with.

    Attributes:
        records: What was read ahead, a record for each row; None: nothing was.
        times: Added to while the batch is computed.
        images: Memory for the batch's images, uint8 [n, H, W, C], or None.
        spread: Has pieces computed in several threads, or None.
    """

    records: Sequence[Any] | None
    times: StageTimes
    images: NDArray[np.uint8] | None = None
    spread: Spread | None = None


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
    records: Sequence[Any],
    positions: NDArray[np.int64],
    epoch: int,
    work: Work,
) -> list[Sample | BadSample]:
    """What one call of the dataset's `finish` gives, in pieces that several threads compute."""

    def finished(piece: slice) -> tuple[list[Sample | BadSample], StageTimes]:
        times = StageTimes()
        images = None if work.images is None else work.images[piece]
        samples = dataset.finish(records[piece], positions[piece], epoch, rows=images, times=times)
        return samples, times

    assert work.spread is not None
    starts = range(0, len(records), PIECE_ROWS)
    pieces = work.spread(finished, [slice(start, start + PIECE_ROWS) for start in starts])
    for _, times in pieces:
        work.times.add(times)
    return [sample for samples, _ in pieces for sample in samples]
