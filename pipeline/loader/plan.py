"""The plan: the positions and records in each batch of each rank."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence, Set
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import NDArray

from penstock.pipeline.loader.contract import BatchTask

if TYPE_CHECKING:
    from penstock.core.contracts import Sampler

Tail = Literal["drop", "pad", "keep"]
Quarantine = Set[Any]
"""Records that kill a worker; for a stream, pairs of epoch and position."""

_TOGETHER = 8192
"""Positions per call of a sampler, over several batches.

A call costs the same NumPy overhead for few positions as for many, and each NumPy call gives up the
interpreter's lock. Batches of 512 from a table of 200,000 rows come 1.4 times as fast as with 1,024
positions a call; 16,384 gain another 1 %.
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
        cuts: Batch bounds of an epoch, as in `SamplerCapabilities.cuts`, in place of `batch_size`.
    """

    num_positions: int
    batch_size: int
    world_size: int = 1
    rank: int = 0
    tail: Tail = "drop"
    group: int = 1
    cuts: Callable[[int], NDArray[np.int64]] | None = None
    num_batches: int = field(init=False)
    """Batches in an epoch, equal on every rank."""

    def __post_init__(self) -> None:
        if not 0 <= self.rank < self.world_size:
            raise ValueError(
                f"batch plan: rank {self.rank} of {self.world_size}; ranks count from 0"
            )
        if self.batch_size % self.group:
            lower = max(self.group, self.batch_size // self.group * self.group)
            raise ValueError(
                f"batch plan: batch_size {self.batch_size} cuts groups of {self.group} "
                f"positions apart; use a multiple of {self.group}, such as {lower}"
            )
        if self.tail == "drop" and self.num_positions < self.batch_size and self.cuts is None:
            raise ValueError(
                f"batch plan: 0 batches: {self.num_positions} samples are fewer than "
                f"batch_size {self.batch_size}, and drop_last leaves the rest out; lower "
                f"loader.batch_size or set loader.drop_last=false"
            )
        if self.cuts is not None and self.group > 1:
            raise ValueError(
                f"batch plan: the sampler cuts batches of any size, and groups of {self.group} "
                f"positions must stay together, as mixup and cutmix need; remove such a step, or "
                f"use sampler=random"
            )
        num_batches = self.num_positions // self.batch_size
        if self.cuts is not None:
            num_batches = len(self.cuts(0)) - 1
        elif self.tail != "drop":
            num_batches = -(-self.num_positions // self.batch_size)
        object.__setattr__(self, "num_batches", num_batches)

    def __len__(self) -> int:
        return self.num_batches

    def bounds(self, number: int, epoch: int = 0) -> tuple[int, int]:
        """Return the bounds of a global batch over all ranks, with padding: start, stop."""
        if self.cuts is not None:
            first, stop = self.cuts(epoch)[number : number + 2].tolist()
            return first, stop
        first = number * self.batch_size
        stop = first + self.batch_size
        return first, min(stop, self.num_positions) if self.tail == "keep" else stop

    def share(self, length: int) -> tuple[int, int]:
        """Return the rows ``(start, stop)`` of this rank in a batch of `length` rows."""
        return rank_slice(length, self.world_size, self.rank, group=self.group)

    def batch(self, number: int, epoch: int = 0) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
        """Return this rank's positions in a global batch, int64 [n], and which are valid, bool [n].

        A rank without samples gets the first position of the batch, marked invalid. n is 0 only for
        a batch that a sampler left empty. Raise IndexError if `number` is out of range.
        """
        if not 0 <= number < self.num_batches:
            raise IndexError(f"batch {number} of an epoch of {self.num_batches} batches")
        first, last = self.bounds(number, epoch)
        start, stop = self.share(last - first)
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
    at: Callable[[int, NDArray[np.int64]], NDArray[np.int64]] | None,
    *,
    epoch: int,
    start: int,
    quarantine: Quarantine,
) -> Iterator[BatchTask]:
    """Yield the tasks of this rank from global batch `start` to the end of the epoch.

    One call of `at` (`SamplerCapabilities.at`) serves many batches. Records added to `quarantine`
    during iteration are quarantined at all their positions.
    """
    held: list[int] = []
    known = 0
    most = 1
    if at is not None:
        most = max(1, _TOGETHER * plan.world_size // plan.batch_size)
    numbers = range(start, min(start + 1, plan.num_batches))
    while numbers:
        batches = [plan.batch(number, epoch) for number in numbers]
        each = [positions for positions, _ in batches]
        if len(quarantine) != known:
            known = len(quarantine)
            held = list(quarantine)
        for number, (positions, valid), indices in zip(
            numbers, batches, _records_of(sampler, num_records, epoch, each, at), strict=True
        ):
            yield BatchTask(
                epoch=epoch,
                number=number,
                positions=positions,
                valid=valid,
                indices=indices,
                quarantined=tuple(set(positions[np.isin(indices, held)].tolist())) if held else (),
            )
        # Calls grow step by step, so that the first batch comes early.
        following = numbers.stop + min(2 * len(numbers), most)
        numbers = range(numbers.stop, min(following, plan.num_batches))


def _records_of(
    sampler: Sampler,
    num_records: int,
    epoch: int,
    batches: Sequence[NDArray[np.int64]],
    at: Callable[[int, NDArray[np.int64]], NDArray[np.int64]] | None,
) -> list[NDArray[np.int64]]:
    """Return the records of batches of positions, int64 [n] each, in one call if `at` is given."""
    if at is None:
        return [_records_at(sampler, num_records, epoch, positions) for positions in batches]
    positions = np.concatenate(batches)
    if not positions.size:
        return [*batches]
    call = f"{type(sampler).__name__}: at({epoch}, ...)"
    records = _checked(at(epoch, positions), positions.size, num_records, call)
    return np.split(records, np.cumsum([each.size for each in batches])[:-1])


def _records_at(
    sampler: Sampler, num_records: int, epoch: int, positions: NDArray[np.int64]
) -> NDArray[np.int64]:
    """Return the records at `positions`, int64 [n], with one call per run of neighbours."""
    if not positions.size:
        return positions
    cuts = np.flatnonzero(np.diff(positions) != 1) + 1
    parts = []
    for run in np.split(positions, cuts):
        start, stop = int(run[0]), int(run[-1]) + 1
        call = f"{type(sampler).__name__}: indices({epoch}, {start}, {stop})"
        part = sampler.indices(epoch, start, stop)
        parts.append(_checked(part, run.size, num_records, call))
    return parts[0] if len(parts) == 1 else np.concatenate(parts)


def _checked(given: Any, count: int, num_records: int, call: str) -> NDArray[np.int64]:
    """Return a sampler's records as int64 [count]; raise ValueError if they are invalid."""
    records = np.asarray(given)
    if records.shape != (count,) or records.dtype.kind not in "iu":
        raise ValueError(
            f"sampler {call} gave {records.dtype} {list(records.shape)}, expected int64 "
            f"[{count}]: one record for each position"
        )
    if records.min() < 0 or records.max() >= num_records:
        wrong = records[(records < 0) | (records >= num_records)][0]
        raise ValueError(
            f"sampler {call} has record {wrong}, expected 0 to {num_records - 1}: the data has "
            f"{num_records} records"
        )
    return records.astype(np.int64, copy=False)
