"""The plan: the positions and records in each batch of each rank."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence, Set
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from penstock.core.contracts import DirectSampler, Sampler
from penstock.pipeline.loader.contract import BatchTask

Tail = Literal["drop", "pad", "keep"]
Quarantine = Set[Any]
"""Records that kill a worker; for a stream, pairs of epoch and position."""

_TOGETHER = 8192
"""Positions per call of a sampler, over several batches.

Batches of 512 from a table of 200,000 rows come 1.4 times as fast as with 1,024 positions a call.
"""


@dataclass(frozen=True, slots=True)
class BatchPlan:
    """Cut positions ``0 .. num_positions - 1`` into batches, and batches into ranks.

    Global batch `b` has `n` positions, G or fewer in the tail. Rank `r` of `W` takes
    ``[b*G + r*n//W, b*G + (r+1)*n//W)``, rounded to whole groups.

    Attributes:
        num_positions: Positions in an epoch, N, up to 10^12 and more.
        batch_size: Positions in a batch over all ranks, G.
        tail: Rule for the last N % G positions: ``drop`` them, ``keep`` a short batch, or ``pad``
            it with invalid rows; padding position q repeats position q mod N.
        group: Consecutive positions that stay on one rank.
        cuts: Batch bounds of an epoch, as in `Sampler.cuts`, in place of `batch_size`.

    Raises:
        ValueError: `group` does not divide `batch_size` or meets `cuts`, or ``drop`` leaves no
            batch.
    """

    num_positions: int
    batch_size: int
    world_size: int = 1
    rank: int = 0
    tail: Tail = "drop"
    group: int = 1
    cuts: Callable[[int], Any] | None = None
    num_batches: int = field(init=False)
    """Batches in an epoch, equal on every rank."""

    def __post_init__(self) -> None:
        if self.batch_size % self.group:
            lower = max(self.group, self.batch_size // self.group * self.group)
            raise ValueError(
                f"batch plan: batch_size {self.batch_size} cuts groups of {self.group} "
                f"positions apart; use a multiple of {self.group}, such as {lower}"
            )
        if self.tail == "drop" and self.num_positions < self.batch_size and self.cuts is None:
            raise ValueError(
                f"batch plan: 0 batches: {self.num_positions} samples are fewer than batch_size "
                f"{self.batch_size}; lower loader.batch_size or set loader.drop_last=false"
            )
        if self.cuts is not None and self.group > 1:
            raise ValueError(
                f"batch plan: the sampler cuts batches of any size, which separates the groups of "
                f"{self.group} positions of mixup and cutmix; remove the step or use sampler=random"
            )
        num_batches = self.num_positions // self.batch_size
        if self.cuts is not None:
            num_batches = len(self.cuts(0)) - 1
        elif self.tail != "drop":
            num_batches = -(-self.num_positions // self.batch_size)
        object.__setattr__(self, "num_batches", num_batches)

    def bounds(self, number: int, epoch: int = 0) -> tuple[int, int]:
        """Return the bounds of a global batch over all ranks, with padding: start, stop."""
        if self.cuts is not None:
            return tuple(self.cuts(epoch)[number : number + 2].tolist())
        first = number * self.batch_size
        stop = first + self.batch_size
        return first, min(stop, self.num_positions) if self.tail == "keep" else stop

    def batch(self, number: int, epoch: int = 0) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
        """Return this rank's positions in a global batch, int64 [n], and which are valid, bool [n].

        A rank without samples gets the first position of the batch, marked invalid. n is 0 only for
        a batch that a sampler left empty.
        """
        first, last = self.bounds(number, epoch)
        start, stop = rank_slice(last - first, self.world_size, self.rank, group=self.group)
        if start == stop and first < last:
            return np.array([first % self.num_positions], np.int64), np.zeros(1, np.bool_)
        positions = np.arange(first + start, first + stop, dtype=np.int64)
        valid = positions < self.num_positions
        return positions % self.num_positions, valid


def rank_slice(length: int, world_size: int, rank: int, *, group: int = 1) -> tuple[int, int]:
    """Return the rows ``(start, stop)`` of `rank` in a batch, cut at multiples of `group`."""
    groups = -(-length // group)
    start = rank * groups // world_size * group
    stop = (rank + 1) * groups // world_size * group
    return min(start, length), min(stop, length)


def indexed_tasks(
    plan: BatchPlan,
    sampler: Sampler,
    num_records: int,
    *,
    epoch: int,
    start: int,
    quarantine: Quarantine,
) -> Iterator[BatchTask]:
    """Yield the tasks of this rank from global batch `start` to the end of the epoch.

    One call of a `DirectSampler` serves many batches. Records added to `quarantine` during
    iteration are quarantined at all their positions. Raise ValueError if the sampler returns
    invalid indices.
    """
    held: list[int] = []
    most = 1
    if isinstance(sampler, DirectSampler):
        most = max(1, _TOGETHER * plan.world_size // plan.batch_size)
    for first in range(start, plan.num_batches, most):
        numbers = range(first, min(first + most, plan.num_batches))
        batches = [plan.batch(number, epoch) for number in numbers]
        records = _records_of(sampler, num_records, epoch, [each for each, _ in batches])
        for number, (positions, valid), indices in zip(numbers, batches, records, strict=True):
            if len(quarantine) != len(held):
                held = list(quarantine)
            yield BatchTask(
                epoch=epoch,
                number=number,
                positions=positions,
                valid=valid,
                indices=indices,
                quarantined=tuple(set(positions[np.isin(indices, held)].tolist())) if held else (),
                banned=tuple(held),
            )


def _records_of(
    sampler: Sampler, num_records: int, epoch: int, batches: Sequence[NDArray[np.int64]]
) -> list[NDArray[np.int64]]:
    """Return the records of batches of positions, int64 [n] each; raise ValueError if invalid."""
    positions = np.concatenate(batches)
    if not positions.size:
        return [*batches]
    records = np.asarray(sampler.at(epoch, positions))
    place = f"epoch {epoch}, positions {positions[0]} to {positions[-1]}"
    name = type(sampler).__name__
    if records.shape != positions.shape or records.dtype.kind not in "iu":
        raise ValueError(
            f"sampler {name} gave {records.dtype} {list(records.shape)}, expected int64 "
            f"{list(positions.shape)}: one record for each position ({place})"
        )
    if records.min() < 0 or records.max() >= num_records:
        raise ValueError(
            f"sampler {name} gave records {records.min()} to {records.max()}, expected 0 to "
            f"{num_records - 1} ({place})"
        )
    return np.split(records.astype(np.int64, copy=False), np.cumsum([*map(len, batches)])[:-1])
