"""The plan: which positions and records, or items of a stream, each batch of each rank holds."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import count, islice
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import NDArray

from penstock.core.sample import BadRecord
from penstock.pipeline.loader.contract import BatchTask

if TYPE_CHECKING:
    from penstock.core.contracts import Sampler, StreamDataset

_log = logging.getLogger(__name__)

Tail = Literal["drop", "pad", "keep"]
Quarantine = frozenset[tuple[int, int]]
"""Pairs of epoch and position that are known to kill a worker."""

_TOGETHER = 8192
"""Positions that a sampler is asked for at once, rather than those of a batch.

Its calls of NumPy cost the same for few as for many, and each gives up the interpreter's lock and
waits for the loader's threads: of 200,000 rows of a table, batches of 512 come 1.4 times as fast as
with 1,024 of them. Twice as many gain 1 % more.
"""


@dataclass(frozen=True, slots=True)
class BatchPlan:
    """Positions ``0 .. num_positions - 1`` cut into batches, and batches into ranks.

    Global batch `b` has `n` positions, ``batch_size`` of them or fewer in the tail, and rank
    `r` of `W` takes ``[b*G + r*n//W, b*G + (r+1)*n//W)``, rounded to whole groups.

    Attributes:
        num_positions: Positions in an epoch, N, up to 10^12 and more.
        batch_size: Positions in a batch over all ranks, G.
        world_size: Number of ranks, W.
        rank: This rank.
        tail: What becomes of the last N % G positions: ``drop`` leaves them out; ``keep``
            makes a short batch; ``pad`` fills it up, position q repeating q mod N, invalid.
        group: Positions that no rank may cut apart.

    Raises:
        ValueError: There is no such rank, `group` does not divide `batch_size`, or ``drop``
            leaves no batch.
    """

    num_positions: int
    batch_size: int
    world_size: int = 1
    rank: int = 0
    tail: Tail = "drop"
    group: int = 1

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
        if self.tail == "drop" and self.num_positions < self.batch_size:
            raise ValueError(
                f"batch plan: 0 batches: {self.num_positions} samples are fewer than "
                f"batch_size {self.batch_size}, and drop_last leaves the rest out; lower "
                f"loader.batch_size or set loader.drop_last=false"
            )

    @property
    def num_batches(self) -> int:
        """Batches in an epoch, the same on every rank."""
        if self.tail == "drop":
            return self.num_positions // self.batch_size
        return -(-self.num_positions // self.batch_size)

    def __len__(self) -> int:
        return self.num_batches

    def batch_length(self, number: int) -> int:
        """Positions of a global batch over all ranks, with padding."""
        if self.tail == "keep":
            return min(self.batch_size, self.num_positions - number * self.batch_size)
        return self.batch_size

    def share(self, length: int) -> tuple[int, int]:
        """Rows ``[start, stop)`` of a batch of so many that this rank takes."""
        return rank_slice(length, self.world_size, self.rank, group=self.group)

    def batch(self, number: int) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
        """Positions of this rank in global batch `number`.

        Returns:
            positions int64 [n], valid bool [n]; n is at least 1, for a rank that is left
            without samples gets the batch's first position once more, marked invalid.

        Raises:
            IndexError: There is no such batch.
        """
        if not 0 <= number < self.num_batches:
            raise IndexError(f"batch {number} of an epoch of {self.num_batches} batches")
        first = number * self.batch_size
        start, stop = self.share(self.batch_length(number))
        if start == stop:
            return np.array([first % self.num_positions], np.int64), np.zeros(1, np.bool_)
        positions = np.arange(first + start, first + stop, dtype=np.int64)
        valid = positions < self.num_positions
        return positions % self.num_positions, valid


def rank_slice(length: int, world_size: int, rank: int, *, group: int = 1) -> tuple[int, int]:
    """Rows ``[start, stop)`` of a batch of `length` rows that `rank` takes.

    Cut at multiples of `group`; a group that the tail left incomplete stays whole as it is.
    """
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
    """Make the tasks of this rank from global batch `start` to the end of the epoch.

    With `at`, what a sampler's `SamplerCapabilities.at` is, many batches are asked for at once.

    Raises:
        ValueError: The sampler gave something else than indices of records.
    """
    held = {position for held_at, position in quarantine if held_at == epoch}
    most = 1
    if at is not None:
        most = max(1, _TOGETHER * plan.world_size // plan.batch_size)
    numbers = range(start, min(start + 1, plan.num_batches))
    while numbers:
        batches = [plan.batch(number) for number in numbers]
        each = [positions for positions, _ in batches]
        for number, (positions, valid), indices in zip(
            numbers, batches, _records_of(sampler, num_records, epoch, each, at), strict=True
        ):
            yield BatchTask(
                epoch=epoch,
                number=number,
                positions=positions,
                valid=valid,
                indices=indices,
                quarantined=tuple(held.intersection(positions.tolist())) if held else (),
                solo=plan.world_size == 1,
            )
        # The first batch is not to wait for others: more and more are asked for.
        following = numbers.stop + min(2 * len(numbers), most)
        numbers = range(numbers.stop, min(following, plan.num_batches))


def _records_of(
    sampler: Sampler,
    num_records: int,
    epoch: int,
    batches: Sequence[NDArray[np.int64]],
    at: Callable[[int, NDArray[np.int64]], NDArray[np.int64]] | None,
) -> list[NDArray[np.int64]]:
    """Records of batches of positions, int64 [n] each; in one call where there is `at`."""
    if at is None:
        return [_records_at(sampler, num_records, epoch, positions) for positions in batches]
    positions = np.concatenate(batches)
    call = f"{type(sampler).__name__}: at({epoch}, ...)"
    records = _checked(at(epoch, positions), positions.size, num_records, call)
    return np.split(records, np.cumsum([each.size for each in batches])[:-1])


def _records_at(
    sampler: Sampler, num_records: int, epoch: int, positions: NDArray[np.int64]
) -> NDArray[np.int64]:
    """Records at `positions`, int64 [n]; one call of the sampler per run of neighbours."""
    cuts = np.flatnonzero(np.diff(positions) != 1) + 1
    parts = []
    for run in np.split(positions, cuts):
        start, stop = int(run[0]), int(run[-1]) + 1
        call = f"{type(sampler).__name__}: indices({epoch}, {start}, {stop})"
        part = sampler.indices(epoch, start, stop)
        parts.append(_checked(part, run.size, num_records, call))
    return parts[0] if len(parts) == 1 else np.concatenate(parts)


def _checked(given: Any, count: int, num_records: int, call: str) -> NDArray[np.int64]:
    """Check what a sampler gave: int64 [count], if it is that many records."""
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


def stream_tasks(
    dataset: StreamDataset,
    *,
    batch_size: int,
    world_size: int,
    rank: int,
    tail: Tail,
    epoch: int,
    start: int,
    quarantine: Quarantine,
) -> Iterator[BatchTask]:
    """Tasks of this rank from global batch `start` until the stream ends.

    Every rank reads the stream and keeps its share, so all agree on its end.
    """
    held = {position for at, position in quarantine if at == epoch}
    head: list[Any] = []
    if start and tail == "pad":
        # Padding repeats the epoch's first items, so they are read even when resuming.
        with _opened(dataset, epoch, 0) as items:
            head = list(islice(items, batch_size))
    with _opened(dataset, epoch, start * batch_size) as items:
        for number in count(start):
            chunk = list(islice(items, batch_size))
            if number == 0:
                head = chunk
            if not chunk:
                return
            if tail == "drop" and len(chunk) < batch_size:
                if rank == 0:
                    _tell_lost(dataset, chunk)
                return
            first = number * batch_size
            length = first + len(chunk)
            positions = np.arange(first, length, dtype=np.int64)
            valid = np.ones(len(chunk), np.bool_)
            if tail == "pad" and len(chunk) < batch_size:
                more = np.arange(length, first + batch_size, dtype=np.int64) % length
                chunk = chunk + [head[position % len(head)] for position in more.tolist()]
                positions = np.concatenate([positions, more])
                valid = np.concatenate([valid, np.zeros(more.size, np.bool_)])
            rows, valid = _rows_of(len(chunk), world_size, rank, valid)
            yield BatchTask(
                epoch=epoch,
                number=number,
                positions=positions[rows],
                valid=valid,
                indices=np.empty(0, np.int64),
                items=[chunk[row] for row in rows],
                quarantined=tuple(held.intersection(positions[rows].tolist())) if held else (),
                solo=world_size == 1,
            )


def _tell_lost(dataset: StreamDataset, items: Sequence[Any]) -> None:
    """Say what damage lost of a shard, where no batch has the items and nobody counts them."""
    for item in items:
        if isinstance(item, BadRecord) and item.ends_shard:
            _log.warning("%s: %r: %s", dataset, item.key, item.cause)


@contextmanager
def _opened(dataset: StreamDataset, epoch: int, start: int) -> Iterator[Iterator[Any]]:
    """The items of a stream; closed at once when no more of them are wanted."""
    items = dataset.open(epoch, start)
    try:
        yield items
    finally:
        if hasattr(items, "close"):  # a generator, or an iterator of the user's
            items.close()


def check_ranks(dataset: StreamDataset, world_size: int) -> None:
    """Refuse a stream that several ranks would have to read and only one can.

    Raises:
        ValueError: It is one.
    """
    if world_size > 1 and not dataset.reopens:
        raise ValueError(
            f"dataset: {dataset} is read once and by one reader, and {world_size} ranks share "
            f"each batch; start one rank, or give each rank's data as files or pipe:command"
        )


def _rows_of(
    length: int, world_size: int, rank: int, valid: NDArray[np.bool_]
) -> tuple[list[int], NDArray[np.bool_]]:
    """Rows of a stream's batch that this rank takes; the first one, invalid, if there are none."""
    start, stop = rank_slice(length, world_size, rank)
    if start == stop:
        return [0], np.zeros(1, np.bool_)
    return list(range(start, stop)), valid[start:stop]
