"""Batches of streams: the items of its readers in each batch of each rank, and who reads them.

With one reader, every rank reads the whole stream and keeps its rows of each batch. With R readers,
reader r owns rows ``[r*G//R, (r+1)*G//R)`` of every batch of G, and a rank reads only with the
readers of its rows. Rows of a reader that has ended stay without records until all readers end. So
no rank needs the length of another rank's readers, and the record at a position depends on neither
ranks nor workers.
"""

from __future__ import annotations

import logging
import os
import pickle
import time
import weakref
from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import closing, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import count, islice
from typing import TYPE_CHECKING, Any

import numpy as np

from penstock.core.processes import ChildProcess, interrupts_held, pickled, start_patience
from penstock.core.sample import BadRecord
from penstock.core.stage_times import counted
from penstock.datasets.files.reading_thread import read_ahead, still_wanted
from penstock.datasets.streams.runs import runs
from penstock.pipeline.loader.contract import BatchTask, Delivery, WorkerDiedError
from penstock.pipeline.loader.faults import BadSampleError
from penstock.pipeline.loader.plan import Quarantine, Tail, rank_slice
from penstock.pipeline.loader.worker import Payload, use_one_thread
from penstock.pipeline.loader.worker_errors import (
    Failure,
    LoaderTimeoutError,
    WorkerError,
    describe_death,
)

if TYPE_CHECKING:
    from multiprocessing.connection import Connection

    from penstock.core.contracts import StreamDataset
    from penstock.core.sample import Batch
    from penstock.pipeline.loader.settings import LoaderSettings

_log = logging.getLogger(__name__)

_Row = tuple[Any, int, bool]
"""Raw item, position, and whether it is valid."""

Compute = Callable[[BatchTask], Delivery]
"""Computes a task, in a worker if there are any."""

OpenReaders = Callable[["StreamDataset", int, Mapping[int, int]], dict[int, Iterator[Any]]]
"""Open readers of an epoch, each at a given item; return the items by reader, to be closed."""


_AT_ONCE = 8
"""Items sent in one message if they come fast."""
_TICK_S = 0.2
_TRIES = 3
"""Processes that may die at the same item."""


@dataclass(frozen=True, slots=True)
class StreamPlan:
    """Cut a stream into batches of `batch_size` rows, and batches into ranks.

    `tail` is the rule for an incomplete batch. With one reader: ``drop`` it, ``keep`` it short, or
    ``pad`` it with invalid rows. With several, after the first ends: ``keep`` shortens batches;
    ``pad`` and ``drop`` fill them, and ``drop`` loses a reader's incomplete last rows.
    """

    dataset: StreamDataset
    batch_size: int
    world_size: int
    rank: int
    tail: Tail
    open_readers: OpenReaders
    # The first items of each reader, for a dataset that cannot be reopened.
    heads: dict[int, list[Any]] = field(init=False, default_factory=dict)
    _fillers: dict[int, Any] = field(init=False, default_factory=dict)

    def __post_init__(self) -> None:
        readers, world_size, dataset = self.dataset.readers, self.world_size, self.dataset
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
    def shares(self) -> bool:
        """Whether several readers share each batch."""
        return self.dataset.readers > 1

    @property
    def waits(self) -> bool:
        """Whether other ranks may have batches after this rank's readers have ended."""
        return self.shares and self.world_size > 1

    def tasks(self, *, epoch: int, start: int, quarantine: Quarantine) -> Iterator[BatchTask]:
        """Yield this rank's tasks from global batch `start` until the stream ends.

        With other ranks, yield until closed: tasks with invalid rows, or empty without any record.
        """
        held = {position for at, position in quarantine if at == epoch}
        readers = self._opened(epoch, start)
        try:
            for number in count(start):
                with counted() as asked:
                    rows = [row for reader in readers for row in reader.rows(number)]
                if not any(valid for *_, valid in rows) and not self.waits:
                    return
                if not self.shares:
                    rows = self._share(rows)
                if not rows:  # this rank's readers have ended
                    rows = next((r.filling(r.size) for r in readers if r.head()), [])
                task = _task_of(epoch, number, rows)
                quarantined = tuple(held.intersection(task.positions.tolist())) if held else ()
                yield replace(task, quarantined=quarantined, asked=asked)
        finally:
            for reader in readers:
                _close(reader.items)

    def _share(self, rows: list[_Row]) -> list[_Row]:
        """Return the rows of this rank, or all rows marked invalid if it has none."""
        start, stop = rank_slice(len(rows), self.world_size, self.rank)
        return rows[start:stop] or [(item, position, False) for item, position, _ in rows]

    def invalid_row(
        self, compute: Compute, epoch: int, number: int, quarantine: Quarantine
    ) -> Batch | None:
        """Make a batch without good samples one invalid row, of the epoch's first good item.

        So all ranks get the same number of batches. Raise ValueError if all items of this rank are
        bad; a single rank leaves the batch out.
        """
        if epoch not in self._fillers:
            self._fillers.clear()
            with closing(self._first_items(epoch, quarantine)) as items:
                good = (i for i in items if self._alone(compute, epoch, number, i) is not None)
                self._fillers[epoch] = next(good, None)
        filler = self._fillers[epoch]
        if filler is not None:
            return self._alone(compute, epoch, number, filler)
        if self.world_size == 1:
            return None
        raise BadSampleError(
            f"{self.dataset}: all records of rank {self.rank} are bad, or the readers of this rank "
            f"lack records: repair the data as the log says, or lower dataset.readers"
        )

    def _alone(self, compute: Compute, epoch: int, number: int, item: Any) -> Batch | None:
        """Make a batch of one invalid row; None if the item is bad."""
        row = item, number * self.batch_size, False
        return compute(_task_of(epoch, number, [row])).batch

    def _first_items(self, epoch: int, quarantine: Quarantine) -> Generator[Any]:
        """Yield the items of this rank's readers from the start of the epoch, unless quarantined.

        A dataset that cannot be reopened yields only the kept items of each reader's first batch.
        """
        for number, (first, stop) in self._rows_of_readers().items():
            items = iter(self.heads.get(number, ()))
            if self.dataset.reopens:
                items = self.open_readers(self.dataset, epoch, {number: 0})[number]
            try:
                for row, item in enumerate(items):
                    batch, at = divmod(row, stop - first)
                    if (epoch, batch * self.batch_size + first + at) not in quarantine:
                        yield item
            finally:
                _close(items)

    def _rows_of_readers(self) -> dict[int, tuple[int, int]]:
        """Return the rows ``(first, stop)`` in a batch of each reader of this rank."""
        each = self.dataset.readers // self.world_size or 1
        first = self.rank * each if self.shares else 0
        return {
            number: rank_slice(self.batch_size, self.dataset.readers, number)
            for number in range(first, first + each)
        }

    def _opened(self, epoch: int, start: int) -> list[_Reader]:
        rows = self._rows_of_readers()
        starts = {number: start * (stop - first) for number, (first, stop) in rows.items()}
        opened = self.open_readers(self.dataset, epoch, starts)
        return [
            _Reader(self, number, epoch, first, stop - first, opened[number])
            for number, (first, stop) in rows.items()
        ]


def _task_of(epoch: int, number: int, rows: list[_Row]) -> BatchTask:
    return BatchTask(
        epoch=epoch,
        number=number,
        positions=np.array([position for _, position, _ in rows], np.int64),
        valid=np.array([valid for *_, valid in rows], np.bool_),
        indices=np.empty(0, np.int64),
        items=[item for item, *_ in rows],
    )


@dataclass(slots=True)
class _Reader:
    """One reader's items, cut into its rows of each batch: `size` of them from `first` on."""

    plan: StreamPlan
    number: int
    epoch: int
    first: int
    size: int
    items: Iterator[Any]
    _head: list[Any] | None = None

    def rows(self, number: int) -> list[_Row]:
        """Read the rows of a batch, padded if the tail says so; no rows at the end."""
        plan, tail = self.plan, self.plan.tail
        items = list(islice(self.items, self.size))
        if number == 0 and (tail == "pad" or plan.shares):
            self._head = items
        if not plan.dataset.reopens:
            plan.heads.setdefault(self.number, items)
        if tail == "drop" and len(items) < self.size:
            if plan.shares or plan.rank == 0:
                _tell_lost(plan.dataset, items)
            items = []
        first = number * plan.batch_size + self.first
        rows = [(item, first + at, True) for at, item in enumerate(items)]
        fills = tail == "pad" or (tail == "drop" and plan.shares)
        missing = self.size - len(items)
        if missing and fills and (items or plan.shares) and self.head():
            rows += self.filling(missing)
        return rows

    def filling(self, missing: int) -> list[_Row]:
        """Repeat the reader's first items as invalid rows."""
        head = self.head()
        places = [at % len(head) for at in range(missing)]
        return [(head[at], self.first + at, False) for at in places]

    def head(self) -> list[Any]:
        """Return the items of batch 0, read again if this run began later."""
        plan = self.plan
        if self._head is None and not plan.dataset.reopens:
            self._head = plan.heads.get(self.number, [])  # a resumed queue keeps its first items
        if self._head is None:
            again = plan.open_readers(plan.dataset, self.epoch, {self.number: 0})[self.number]
            try:
                self._head = list(islice(again, self.size))
            finally:
                _close(again)
        return self._head


def any_rank(has_records: bool) -> bool:
    """Return whether any rank has records in this batch; needs torch.distributed."""
    import torch
    import torch.distributed as dist

    if not dist.is_initialized():
        raise ValueError(
            "loader: ranks that share a stream end together: call torch.distributed."
            "init_process_group with a CPU backend (cpu:gloo,cuda:nccl), or set dataset.readers=1"
        )
    found = torch.tensor([has_records], dtype=torch.int32)
    dist.all_reduce(found, op=dist.ReduceOp.MAX)
    return bool(found.item())


def _close(items: Iterator[Any]) -> None:
    if hasattr(items, "close"):  # a generator or a user's iterator
        items.close()


def _tell_lost(dataset: StreamDataset, items: list[Any]) -> None:
    """Log damage that lost the rest of a shard, for items that no batch contains."""
    for item in items:
        if isinstance(item, BadRecord) and item.ends_shard:
            _log.warning("%s: %r: %s", dataset, item.key, item.cause)


class StreamReaders:
    """Open readers of a stream: each that runs a user's code in a process of its own.

    The processes are used again in the next epoch. Framework readers, and all without workers, run
    in this process.
    """

    def __init__(self, settings: LoaderSettings, imports: tuple[str, ...]) -> None:
        self._settings = settings
        self._imports = imports
        self._idle: list[ChildProcess] = []
        weakref.finalize(self, _end_all, self._idle)

    def __call__(
        self, dataset: StreamDataset, epoch: int, starts: Mapping[int, int]
    ) -> dict[int, Iterator[Any]]:
        """Open readers at `starts`, item numbers by reader; close the result to end them."""
        if not (dataset.foreign_reader and self._settings.workers):
            return {n: _items(dataset, epoch, n, start) for n, start in starts.items()}
        recipe = pickled(
            (_read, (Payload(dataset, self._imports), self._settings)),
            what="loader: the data set",
            remedy="use loader.num_workers=0",
        )
        self._idle[:] = [child for child in self._idle if child.starter == os.getpid()]
        received = partial(self._received, recipe, epoch)
        return {n: read_ahead(partial(received, n, start)) for n, start in starts.items()}

    def _received(self, recipe: bytes, epoch: int, number: int, start: int) -> Iterator[Any]:
        """Yield the items of a reader as its process sends them; runs in a thread."""
        deaths = 0
        while True:
            child = self._started(recipe)
            is_done = False
            try:
                with suppress(OSError):  # `_messages` notices a process that ended
                    child.connection.send((epoch, number, start))
                for item in _messages(child, self._settings.timeout_s, skips=start > 0):
                    deaths = 0
                    start += 1
                    yield item
                is_done = self._settings.persistent_workers
                return
            except WorkerDiedError as death:
                deaths += 1
                if deaths == _TRIES:
                    raise death.final(f"{death}; {_TRIES} ended at the same item") from None
                _log.warning("%s; another process resumes at the same item", death)
            finally:
                self._idle.append(child) if is_done else child.end()

    def _started(self, recipe: bytes) -> ChildProcess:
        with suppress(IndexError):  # none is idle
            return self._idle.pop()
        with interrupts_held():
            child = ChildProcess(message_timeout_s=self._settings.timeout_s)
        child.begin(recipe)
        return child

    def close(self) -> None:
        """End the idle processes."""
        _end_all(self._idle)


def _end_all(idle: list[ChildProcess]) -> None:
    while idle:
        idle.pop().end()


def _items(dataset: StreamDataset, epoch: int, number: int, start: int) -> Iterator[Any]:
    more: dict[str, Any] = {"reader": number} if dataset.readers > 1 else {}
    return dataset.open(epoch, start, **more)


def _messages(child: ChildProcess, timeout_s: float, *, skips: bool) -> Iterator[Any]:
    """Yield the items that a process sends, until the reader ends."""
    # Skipping items that were read before takes as long as reading them.
    limit_s = float("inf") if skips else start_patience(timeout_s)
    while True:
        deadline = time.monotonic() + limit_s
        while not child.connection.poll(_TICK_S):
            still_wanted()
            if time.monotonic() > deadline:
                raise LoaderTimeoutError(
                    f"loader: a reader of the stream gave no item within {limit_s:g} s; raise "
                    f"loader.timeout_s if reading is that slow"
                )
        try:
            message = child.connection.recv_bytes()
        except (EOFError, OSError):
            child.end()
            how = describe_death(child.pid, child.process.poll())
            raise WorkerDiedError(how, WorkerError) from None
        items = pickle.loads(message)
        if isinstance(items, Failure):
            raise items.exception()
        if not items:
            return
        limit_s = timeout_s
        yield from items


def _read(connection: Connection, payload: Payload, settings: LoaderSettings) -> None:
    """Read one epoch after another in a child process, until the parent ends."""
    settings.apply_to_worker()
    use_one_thread()
    with suppress(OSError, EOFError):
        while True:
            for message in _sent(payload.value, *connection.recv()):
                connection.send_bytes(pickle.dumps(message, pickle.HIGHEST_PROTOCOL))


def _sent(dataset: StreamDataset, epoch: int, number: int, start: int) -> Iterator[Any]:
    """Yield the items of a reader in runs, and an empty run at its end; or an exception."""
    try:
        yield from runs(_items(dataset, epoch, number, start), _AT_ONCE)
        yield []
    except Exception as error:
        yield Failure.of(error)
