"""The plan of a stream: the items of its readers in each batch of each rank.

With one reader, every rank reads the whole stream and keeps its rows of each batch. With R readers,
reader r owns rows ``[r*G//R, (r+1)*G//R)`` of every batch of G, and a rank reads only with the
readers of its rows. Rows of a reader that has ended stay without records until all readers end. So
no rank needs the length of another rank's readers, and the record at a position depends on neither
ranks nor workers.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from itertools import count, islice
from typing import TYPE_CHECKING, Any

import numpy as np

from penstock.core.sample import BadRecord
from penstock.core.stage_times import counted
from penstock.pipeline.loader.contract import BatchTask
from penstock.pipeline.loader.plan import Quarantine, Tail, rank_slice

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from penstock.core.contracts import StreamDataset

_log = logging.getLogger(__name__)

OpenReaders = Callable[["StreamDataset", int, dict[int, int]], dict[int, Iterator[Any]]]
"""Open readers of an epoch, each at a given item; return the items by reader."""


@dataclass(frozen=True, slots=True)
class StreamPlan:
    """Cut a stream into batches of `batch_size` rows, and batches into ranks.

    `tail` is the rule for an incomplete batch. With one reader: ``drop`` it, ``keep`` it short, or
    ``pad`` it with invalid rows. With several, after the first ends: ``keep`` shortens batches;
    ``pad`` and ``drop`` fill them, and ``drop`` loses a reader's incomplete last rows. `heads` has
    the first items of each reader, for a dataset that cannot be reopened.
    """

    dataset: StreamDataset
    batch_size: int
    world_size: int
    rank: int
    tail: Tail
    open_readers: OpenReaders
    num_readers: int = field(init=False)
    heads: dict[int, list[Any]] = field(init=False, default_factory=dict)

    def __post_init__(self) -> None:
        readers = self.dataset.readers
        object.__setattr__(self, "num_readers", readers)
        world_size, dataset = self.world_size, self.dataset
        if readers == 1 and world_size > 1 and not dataset.reopens:
            raise ValueError(
                f"dataset: {dataset} can be read once by one reader, and {world_size} ranks share "
                f"each batch; start one rank, or give each rank's data as files or pipe:command"
            )
        if readers > 1 and readers % world_size:
            raise ValueError(
                f"dataset.readers is {readers}, and {world_size} ranks cannot share them evenly; "
                f"type dataset.readers={max(readers // world_size, 1) * world_size}, or 1"
            )
        if readers > self.batch_size:
            raise ValueError(
                f"dataset.readers is {readers}, more than the {self.batch_size} "
                f"rows of a batch; lower dataset.readers or raise loader.batch_size"
            )

    @property
    def waits(self) -> bool:
        """Whether other ranks may have batches after this rank's readers have ended."""
        return self.num_readers > 1 and self.world_size > 1

    def tasks(self, *, epoch: int, start: int, quarantine: Quarantine) -> Iterator[BatchTask]:
        """Yield this rank's tasks from global batch `start` until the stream ends.

        With other ranks, yield until closed: tasks with invalid rows, or empty without any record.
        """
        held = {position for at, position in quarantine if at == epoch}
        with ExitStack() as stack:
            readers = self._opened(epoch, start, stack)
            for number in count(start):
                with counted() as asked:
                    parts = [reader.rows(number) for reader in readers]
                if not any(part.valid.any() for part in parts) and not self.waits:
                    return
                rows = _Rows.joined(parts)
                if self.num_readers == 1:
                    rows = rows.share(self.world_size, self.rank)
                if not rows.items:  # this rank's readers have ended
                    rows = next((r.filling() for r in readers if r.head()), rows)
                positions = rows.positions
                yield BatchTask(
                    epoch=epoch,
                    number=number,
                    positions=positions,
                    valid=rows.valid,
                    indices=np.empty(0, np.int64),
                    items=rows.items,
                    quarantined=tuple(held.intersection(positions.tolist())) if held else (),
                    asked=asked,
                )

    def first_items(self, epoch: int, quarantine: Quarantine) -> Generator[Any]:
        """Yield the items of this rank's readers from the start of the epoch, unless quarantined.

        A dataset that cannot be reopened yields only the kept items of each reader's first batch.
        """
        for number, (first, stop) in self._rows_of_readers().items():
            items = iter(self.heads.get(number, ()))
            if self.dataset.reopens:
                items = self.open_readers(self.dataset, epoch, {number: 0})[number]
            with _closing(items):
                for row, item in enumerate(items):
                    batch, at = divmod(row, stop - first)
                    if (epoch, batch * self.batch_size + first + at) not in quarantine:
                        yield item

    def _rows_of_readers(self) -> dict[int, tuple[int, int]]:
        """Return the rows ``(first, stop)`` in a batch of each reader of this rank."""
        each = self.num_readers // self.world_size or 1
        first = self.rank * each if self.num_readers > 1 else 0
        return {
            number: rank_slice(self.batch_size, self.num_readers, number)
            for number in range(first, first + each)
        }

    def _opened(self, epoch: int, start: int, stack: ExitStack) -> list[_Reader]:
        sizes = self._rows_of_readers()
        starts = {number: start * (stop - begin) for number, (begin, stop) in sizes.items()}
        opened = self.open_readers(self.dataset, epoch, starts)
        for items in opened.values():
            stack.enter_context(_closing(items))
        return [
            _Reader(self, opened[number], number=number, epoch=epoch, rows=rows)
            for number, rows in sizes.items()
        ]


@dataclass(slots=True)
class _Rows:
    """Rows of a batch: raw items, positions int64 [n], valid bool [n]."""

    items: list[Any]
    positions: NDArray[np.int64]
    valid: NDArray[np.bool_]

    @classmethod
    def joined(cls, parts: Sequence[_Rows]) -> _Rows:
        return cls(
            [item for part in parts for item in part.items],
            np.concatenate([part.positions for part in parts]),
            np.concatenate([part.valid for part in parts]),
        )

    def share(self, world_size: int, rank: int) -> _Rows:
        """Return the rows of a rank, or all rows marked invalid if it has none."""
        start, stop = rank_slice(len(self.items), world_size, rank)
        if start == stop:
            return _Rows(self.items, self.positions, np.zeros(len(self.items), np.bool_))
        rows = slice(start, stop)
        return _Rows(self.items[rows], self.positions[rows], self.valid[rows])


class _Reader:
    """One reader's items, cut into its rows ``(first, stop)`` of each batch."""

    def __init__(
        self,
        plan: StreamPlan,
        items: Iterator[Any],
        *,
        number: int,
        epoch: int,
        rows: tuple[int, int],
    ) -> None:
        self._plan = plan
        self._items = items
        self._number = number
        self._epoch = epoch
        self._first, stop = rows
        self._size = stop - self._first
        self._shares = plan.num_readers > 1
        self._keeps_head = plan.tail == "pad" or self._shares or not plan.dataset.reopens
        self._head: list[Any] | None = None

    def rows(self, number: int) -> _Rows:
        """Read the rows of a batch, padded if the tail says so; no rows at the end."""
        items = list(islice(self._items, self._size))
        if number == 0 and self._keeps_head:
            self._head = items
        if self._keeps_head and not self._plan.dataset.reopens:
            self._plan.heads.setdefault(self._number, items)
        tail = self._plan.tail
        if tail == "drop" and len(items) < self._size:
            if self._shares or self._plan.rank == 0:
                _tell_lost(self._plan.dataset, items)
            items = []
        first = number * self._plan.batch_size + self._first
        rows = _Rows(
            items,
            np.arange(first, first + len(items), dtype=np.int64),
            np.ones(len(items), np.bool_),
        )
        missing = self._size - len(items)
        fills = tail == "pad" or (tail == "drop" and self._shares)
        if not missing or not fills or not (items or self._shares):
            return rows
        if self._head is None and not self._plan.dataset.reopens:
            self._head = items  # a resumed queue keeps its first items
        return _Rows.joined([rows, self.filling(missing)]) if self.head() else rows

    def filling(self, missing: int | None = None) -> _Rows:
        """Repeat the reader's first items as `missing` invalid rows; None fills all its rows."""
        head, missing = self.head(), self._size if missing is None else missing
        at = np.arange(missing, dtype=np.int64) % len(head)
        return _Rows([head[row] for row in at.tolist()], self._first + at, np.zeros(missing, bool))

    def head(self) -> list[Any]:
        """Return the items of batch 0, read again if this run began later."""
        if self._head is None:
            again = self._plan.open_readers(self._plan.dataset, self._epoch, {self._number: 0})
            with _closing(again[self._number]) as items:
                self._head = list(islice(items, self._size))
        return self._head


def any_rank(has_records: bool) -> bool:
    """Return whether any rank has records in this batch; needs torch.distributed."""
    import torch
    import torch.distributed as dist

    if not dist.is_initialized():
        raise ValueError(
            "loader: the ranks of a stream with several readers must end together: call "
            "torch.distributed.init_process_group with a backend of the CPU (cpu:gloo,cuda:nccl) "
            "first, or set dataset.readers=1"
        )
    found = torch.tensor([has_records], dtype=torch.int32)
    dist.all_reduce(found, op=dist.ReduceOp.MAX)
    return bool(found.item())


@contextmanager
def _closing(items: Iterator[Any]) -> Iterator[Iterator[Any]]:
    try:
        yield items
    finally:
        if hasattr(items, "close"):  # a generator or a user's iterator
            items.close()


def _tell_lost(dataset: StreamDataset, items: Sequence[Any]) -> None:
    """Log damage that lost the rest of a shard, for items that no batch contains."""
    for item in items:
        if isinstance(item, BadRecord) and item.ends_shard:
            _log.warning("%s: %r: %s", dataset, item.key, item.cause)
