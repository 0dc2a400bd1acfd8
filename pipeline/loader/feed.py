"""The tasks of an epoch: positions to records, or items of a stream."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count, islice
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from pipeline.loader.contract import BatchTask
from pipeline.loader.plan import BatchPlan, Tail, rank_slice

if TYPE_CHECKING:
    from datasets.protocols import Sampler, StreamDataset

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
    for number in range(start, plan.num_batches):
        positions, valid = plan.batch(number)
        yield BatchTask(
            epoch=epoch,
            number=number,
            positions=positions,
            valid=valid,
            indices=_records_at(sampler, num_records, epoch, positions),
            quarantined=tuple(held.intersection(positions.tolist())) if held else (),
            solo=plan.world_size == 1,
        )


def _records_at(
    sampler: Sampler, num_records: int, epoch: int, positions: NDArray[np.int64]
) -> NDArray[np.int64]:
    """Records at `positions`, int64 [n]; one call of the sampler per run of neighbours."""
    cuts = np.flatnonzero(np.diff(positions) != 1) + 1
    parts = []
    for run in np.split(positions, cuts):
        start, stop = int(run[0]), int(run[-1]) + 1
        part = np.asarray(sampler.indices(epoch, start, stop))
        name = type(sampler).__name__
        if part.shape != run.shape or part.dtype.kind not in "iu":
            raise ValueError(
                f"sampler {name}: indices({epoch}, {start}, {stop}) gave {part.dtype} "
                f"{list(part.shape)}, expected int64 [{run.size}]: one record for each position"
            )
        if part.min() < 0 or part.max() >= num_records:
            wrong = part[(part < 0) | (part >= num_records)][0]
            raise ValueError(
                f"sampler {name}: indices({epoch}, {start}, {stop}) has record {wrong}, expected "
                f"0 to {num_records - 1}: the data has {num_records} records"
            )
        parts.append(part.astype(np.int64, copy=False))
    return parts[0] if len(parts) == 1 else np.concatenate(parts)


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
            if not chunk or (tail == "drop" and len(chunk) < batch_size):
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
