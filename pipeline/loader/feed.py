"""The tasks of an epoch: positions to records, or items of a stream."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import count, islice
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from datasets.sample import BadRecord
from pipeline.loader.contract import BatchTask
from pipeline.loader.plan import BatchPlan, Tail, rank_slice

if TYPE_CHECKING:
    from datasets.protocols import Sampler, StreamDataset

_log = logging.getLogger(__name__)

_TOGETHER = 8192
"""Positions that a sampler is asked for at once, rather than those of a batch.

Its calls of NumPy cost the same for few as for many, and each gives up the interpreter's lock and
waits for the loader's threads: of 200,000 rows of a table, batches of 512 come 1.4 times as fast as
with 1,024 of them. Twice as many gain 1 % more.
"""

Quarantine = frozenset[tuple[int, int]]
"""Pairs of epoch and position that are known to kill a worker."""


def indexed_tasks(
    plan: BatchPlan,
    sampler: Sampler,
    num_records: int,
    *,
    epoch: int,
    start: int,
    quarantine: Quarantine,
) -> Iterator[BatchTask]:
    """Tasks of this rank from global batch `start` to the end of the epoch.

    Raises:
        ValueError: The sampler gave something else than indices of records.
    """
    held = {position for at, position in quarantine if at == epoch}
    most = 1
    if hasattr(sampler, "at"):
        most = max(1, _TOGETHER * plan.world_size // plan.batch_size)
    numbers = range(start, min(start + 1, plan.num_batches))
    while numbers:
        batches = [plan.batch(number) for number in numbers]
        each = [positions for positions, _ in batches]
        for number, (positions, valid), indices in zip(
            numbers, batches, _records_of(sampler, num_records, epoch, each), strict=True
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
    sampler: Sampler, num_records: int, epoch: int, batches: Sequence[NDArray[np.int64]]
) -> list[NDArray[np.int64]]:
    """Records of batches of positions, int64 [n] each; in one call where the sampler has `at`."""
    draw = getattr(sampler, "at", None)
    if draw is None:
        return [_records_at(sampler, num_records, epoch, positions) for positions in batches]
    positions = np.concatenate(batches)
    call = f"{type(sampler).__name__}: at({epoch}, ...)"
    records = _checked(draw(epoch, positions), positions.size, num_records, call)
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
    """What a sampler gave, int64 [count], if it is that many records."""
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
        if hasattr(items, "close"):
            items.close()


def check_ranks(dataset: StreamDataset, world_size: int) -> None:
    """Refuse a stream that several ranks would have to read and only one can.

    Raises:
        ValueError: It is one.
    """
    if world_size > 1 and not getattr(dataset, "reopens", True):
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
