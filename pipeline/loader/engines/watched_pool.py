"""A pool of workers that are replaced when they die or hang, wherever they are."""

from __future__ import annotations

import atexit
import logging
import os
import signal
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from multiprocessing.connection import Pipe, wait
from typing import TYPE_CHECKING, Protocol

import numpy as np

from penstock.pipeline.loader.bundles import rows_of_bundle
from penstock.pipeline.loader.contract import BatchTask, Delivery
from penstock.pipeline.loader.engines.batch_memory import pins
from penstock.pipeline.loader.engines.pool import Pending
from penstock.pipeline.loader.engines.slots import SlotPool, unpack
from penstock.pipeline.loader.engines.watched_worker import Job, WatchedWorker
from penstock.pipeline.loader.engines.worker import Answer
from penstock.pipeline.loader.worker_errors import Failure, LoaderClosedError, WorkerError

if TYPE_CHECKING:
    from penstock.pipeline.loader.compute import BatchComputer
    from penstock.pipeline.loader.settings import LoaderSettings

_logger = logging.getLogger(__name__)

_FAILED_STARTS = 3
"""Starts of every worker that may fail in a row."""
_TRIES = 2
"""A position that ends so many workers of its own is quarantined."""
_TICK_S = 0.5
_GIVE_UP_S = 10.0
_END_S = 15.0
_LOOK_S = 0.05
HELD_BY_CONSUMER = 3
"""Batches that the loop, the loader and a prefetcher hold without keeping any."""


class Starter(Protocol):
    """Starts workers of one kind.

    Args:
        compute: A task to a delivery; sent to the workers.
        settings: Deadlines, and what this kind takes of them.
        num_workers: How many there will be, beside those that probe.
    """

    def __init__(
        self, compute: BatchComputer, settings: LoaderSettings, num_workers: int
    ) -> None: ...

    @property
    def lives(self) -> int:
        """A batch is examined when so many workers have died while they were at it."""

    @property
    def forks(self) -> bool:
        """Whether workers are copies of this process, with every lock that is held in it."""

    @staticmethod
    def prepare(settings: LoaderSettings) -> None:
        """Begin what takes long, before anything is to be computed."""

    def slots(self, held: int) -> SlotPool:
        """Where their batches go; `held` of them may be viewed at a time."""

    def start(self, number: int, *, num_threads: int, probes: bool) -> WatchedWorker:
        """Start a worker.

        Args:
            number: Its number among the workers.
            num_threads: Tasks that it computes at a time.
            probes: It finds out what kills, beside the workers and soon.

        Raises:
            WorkerError: It could not be started; others may be.
            ValueError: The data set cannot be sent to workers.
        """

    def hurry(self) -> None:
        """Cut a start short that nobody needs any more; called until it is over."""


class WatchedPool:
    """Workers with threads of their own, and one thread here that watches over them.

    That thread hands tasks to idle workers, gathers answers, and sees at once when a worker
    ends, and by `timeout_s` when one hangs. It is replaced, and what it was at is examined (see
    `find_killers`) and computed again, bit for bit.

    Tasks that are given together are computed together, and apart when their worker dies.
    Where a GPU waits, the watch copies batches to page-locked memory of torch's.

    Args:
        starter: Starts the workers.
        settings: Whether batches are pinned.
        threads: Number of threads of each worker.
        depth: Batches to be computed ahead of the consumer.
    """

    def __init__(
        self,
        starter: Starter,
        settings: LoaderSettings,
        *,
        threads: Sequence[int],
        depth: int,
    ) -> None:
        self.depth = depth
        self.restarts = 0
        self.rows_together = 0  # until somebody has told how large rows are
        self._starter = starter
        self._threads = threads
        self._pins = pins(settings)
        self._slots = starter.slots(depth + HELD_BY_CONSUMER)
        self._waiting: deque[Job] = deque()
        self._drops = 0
        self._workers: list[WatchedWorker] = []
        self._prober: WatchedWorker | None = None
        self._failed_starts = 0
        self._error: BaseException | None = None
        self._closing = False
        self._owner = os.getpid()
        self._awake, self._waker = Pipe(duplex=False)
        self._watch = threading.Thread(target=self._run, name="penstock-watch", daemon=True)
        self._started = threading.Event()
        self._abandoned = False
        self._watch.start()
        if starter.forks:
            # A lock that this thread holds meanwhile, of an import, would stay held in them.
            self._started.wait()
        atexit.register(self.close)

    @property
    def pids(self) -> list[int | None]:
        """Process ids of the workers."""
        return [worker.pid for worker in self._workers]

    @property
    def is_own(self) -> bool:
        """Whether the workers are those of this process, and not of one that it is a copy of."""
        return os.getpid() == self._owner

    def submit(self, tasks: Sequence[BatchTask]) -> list[Pending]:
        """Give tasks to the next worker that is idle."""
        job = Job([Pending(task) for task in tasks], self._drops)
        self._waiting.append(job)
        self._wake()
        return job.bundle

    def take(self, pending: Pending) -> Delivery:
        """Wait for a delivery. The watch keeps the deadlines, and replaces what hangs.

        Raises:
            WorkerError: Workers cannot be started, or a batch ends every one.
            LoaderClosedError: The pool was closed meanwhile.
            Exception: What the computation raised.
        """
        while (outcome := pending.take(_TICK_S)) is None:
            if self._error is not None:
                raise self._error
        if isinstance(outcome, Failure):
            outcome.raise_error()
        delivery: Delivery = outcome
        return delivery

    def drop(self) -> None:
        """Forget all that was submitted. What is being computed is finished and left aside."""
        if self.is_own:
            self._drops += 1
            self._waiting.clear()
            self._wake()

    def close(self) -> None:
        """End the workers at once; batches that were delivered stay as they are."""
        if not self.is_own:
            return
        atexit.unregister(self.close)
        self._closing = True
        self.drop()
        self._error = LoaderClosedError()
        if self._watch is not threading.current_thread():
            # What a start waits for may be another's too, and take longer.
            deadline = time.monotonic() + _GIVE_UP_S
            while not self._started.is_set() and time.monotonic() < deadline:
                self._starter.hurry()
                self._started.wait(_LOOK_S)
            if self._started.is_set():
                self._watch.join(_END_S)  # longer only where the server that forks hangs
            self._abandoned = True
            if not self._watch.is_alive():
                self._release()

    def _release(self) -> None:
        """Give back what the watch no longer uses; twice does no harm."""
        self._awake.close()
        self._waker.close()
        self._slots.close()

    def _wake(self) -> None:
        with suppress(OSError):  # the watch ended, and said why
            self._waker.send_bytes(b"w")

    def _is_wanted(self, job: Job) -> bool:
        return job.drops == self._drops and not self._closing

    def _give_back(self, job: Job) -> None:
        """Take a job's slot from it, and let it be used again."""
        slot, job.slot = job.slot, None
        if slot is not None:
            self._slots.give_back(slot)

    def _run(self) -> None:
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})  # workers inherit it
        try:
            for number in range(len(self._threads)):
                if not self._closing:
                    self._workers.append(self._start(number))
            self._started.set()
            while not self._closing:
                self._hand_out()
                self._look()
        except BaseException as error:
            self._error = error
        finally:
            self._started.set()
            workers, self._workers = self._workers, []
            for worker in workers:
                worker.end()
                for job in worker.jobs.values():
                    self._give_back(job)
            if self._abandoned:
                self._release()

    def _start(self, number: int, *, probes: bool = False) -> WatchedWorker:
        """Start a worker, again where that fails.

        Args:
            number: Its number among the workers.
            probes: Whether it computes one task at a time.

        Raises:
            WorkerError: It failed each time.
            ValueError: The data set cannot be sent to workers.
        """
        while True:
            try:
                return self._starter.start(
                    number,
                    num_threads=1 if probes else self._threads[number],
                    probes=probes,
                )
            except WorkerError as error:
                if self._closing:
                    raise
                self._count_failed_starts(len(self._threads), str(error), error.__cause__)

    def _count_failed_starts(
        self, count: int, how: str, cause: BaseException | None = None
    ) -> None:
        self._failed_starts += count
        if self._failed_starts >= _FAILED_STARTS * len(self._threads):
            raise WorkerError(how) from cause

    def _hand_out(self) -> None:
        """Give waiting jobs to idle threads."""
        while self._waiting:
            worker = max(self._workers, key=lambda worker: worker.room)
            if not worker.room:
                break
            try:
                job = self._waiting.popleft()
            except IndexError:  # dropped meanwhile
                break
            job.slot = self._slots.take()
            try:
                worker.send(job)
            except OSError as error:
                worker.timed_out = isinstance(error, BlockingIOError)
                self._replace(worker)

    def _look(self) -> None:
        """Wait until something happens, and see to it."""
        workers = list(self._workers)
        first = min(worker.deadline for worker in workers)
        timeout_s = None if first == float("inf") else max(0.0, first - time.monotonic())
        sources = [self._awake, *(worker.connection for worker in workers)]
        ends = (sentinel for worker in workers for sentinel in worker.sentinels)
        ready = set(wait([*sources, *ends], timeout_s))
        if self._awake in ready:
            self._forget_wakes()
            return
        now = time.monotonic()
        for worker in workers:
            if worker.connection in ready:
                self._receive(worker)
            elif not ready.isdisjoint(worker.sentinels):
                self._replace(worker)
            elif worker.deadline <= now:
                worker.timed_out = True
                self._replace(worker)

    def _forget_wakes(self) -> None:
        while self._awake.poll():
            self._awake.recv_bytes()

    def _receive(self, worker: WatchedWorker) -> None:
        try:
            received = worker.receive()
        except (EOFError, OSError) as error:
            worker.timed_out = isinstance(error, BlockingIOError)
            return self._replace(worker)
        if received is None:
            self._failed_starts = 0
        else:
            self._deliver(*received)

    def _deliver(self, job: Job, answer: Answer) -> None:
        """Unpack what each task of a job gave, up to the first that failed.

        Tensors are views of the slot, which comes back when all of them are gone.
        """
        packed = answer.packed
        if packed is None or not packed.size_bytes or not self._is_wanted(job):
            self._give_back(job)
        if packed is None or not self._is_wanted(job):
            return
        slot, job.slot = job.slot, None
        memory = None if slot is None else self._slots.lease(slot, packed.size_bytes)
        self.rows_together = rows_of_bundle(answer.row_bytes)
        for pending, outcome in zip(job.bundle, unpack(packed, memory), strict=False):
            if isinstance(outcome, Delivery):
                held = tuple((pending.task.epoch, position) for position in job.quarantined)
                outcome = replace(outcome, quarantined=held)
                outcome = outcome.pin_memory() if self._pins else outcome
            pending.put(outcome)

    def _replace(self, worker: WatchedWorker) -> None:
        """Replace a worker that died or hangs, and see to what it was at."""
        worker.end()
        how = worker.describe_end()
        if not worker.is_ready:
            self._count_failed_starts(1, how)
        for job in worker.jobs.values():
            self._give_back(job)
        jobs = [job for job in worker.jobs.values() if self._is_wanted(job)]
        lost = sum(len(job.bundle) for job in jobs)
        _logger.warning("%s; it is replaced, and its %d batches are computed again", how, lost)
        self.restarts += 1
        self._workers[self._workers.index(worker)] = self._start(worker.number)
        again: list[Job] = []
        for job in jobs:
            job.deaths += 1
            if worker.timed_out or (len(job.bundle) == 1 and job.deaths >= self._starter.lives):
                for each in job.apart():
                    self._examine(each)
            else:
                # Every row is examined alone. First it shows which of these batches it was.
                again += job.apart()
        self._waiting.extendleft(reversed(again))

    def _examine(self, job: Job) -> None:
        """Compute a batch whose worker died, without the positions that end workers.

        Each try is in a worker that does nothing else. Nothing else is seen to meanwhile: who
        waits for batches waits for this one, the oldest.
        """
        task = job.bundle[0].task
        try:
            job.quarantined = find_killers(task, partial(self._survives, job))
            how = ""
            for tries in range(1, _TRIES + 1):
                job.slot = self._slots.take()
                job.reports_memory = tries == _TRIES
                answer, how = self._probe(job, lambda prober: prober.send(job))
                if answer is not None:
                    return self._deliver(job, answer)
                self._give_back(job)
            how += (
                f"; so it was twice, with batch {task.number} of epoch {task.epoch} alone, though "
                f"no position of it does that by itself"
            )
            job.bundle[0].put(Failure(WorkerError(how), how, explained=True))
        except _NobodyWaitsError:
            self._give_back(job)
        finally:
            if self._prober is not None:
                self._prober.end()
                self._prober = None

    def _survives(self, job: Job, row: BatchTask) -> bool:
        """Whether a worker survives a row of the job."""
        return self._probe(job, lambda prober: prober.probe(row))[0] is not None

    def _probe(self, job: Job, order: Callable[[WatchedWorker], None]) -> tuple[Answer | None, str]:
        """Let a worker that does nothing else carry out an order of a job's examination.

        Returns:
            The answer; or None, and how the worker ended.
        """
        while True:
            self._check_wanted(job)
            prober = self._prober = self._prober or self._start(0, probes=True)
            try:
                while not prober.is_ready:
                    self._message_of(prober, job)
                self._failed_starts = 0
                order(prober)
                received = self._message_of(prober, job)
                assert received is not None, "it is ready once"
                return received[1], ""
            except (EOFError, OSError) as error:
                self._prober = None
                prober.timed_out = isinstance(error, BlockingIOError)
                prober.end()
                how = prober.describe_end()
                if prober.is_ready:
                    return None, how
                self._count_failed_starts(1, how)

    def _message_of(self, prober: WatchedWorker, job: Job) -> tuple[Job, Answer] | None:
        """Wait for the next message of a worker alone.

        Raises:
            EOFError: It is dead.
            OSError: It is dead; BlockingIOError: it hangs.
        """
        while True:
            self._check_wanted(job)
            timeout_s = max(0.0, prober.deadline - time.monotonic())
            ready = wait([self._awake, prober.connection, *prober.sentinels], timeout_s)
            if self._awake in ready:
                self._forget_wakes()
            elif prober.connection in ready:
                return prober.receive()
            elif not set(prober.sentinels).isdisjoint(ready):
                raise EOFError
            elif prober.deadline <= time.monotonic():
                raise BlockingIOError

    def _check_wanted(self, job: Job) -> None:
        if not self._is_wanted(job):
            raise _NobodyWaitsError


class _NobodyWaitsError(Exception):
    """The iteration that a batch is of was broken off."""


def find_killers(task: BatchTask, survives: Callable[[BatchTask], bool]) -> tuple[int, ...]:
    """Find the positions of a task that end the workers which compute them alone.

    Args:
        task: The task; positions that it knows to kill are passed over.
        survives: Whether a worker survives a task of one row.
    """
    killers: list[int] = []
    for row, position in enumerate(task.positions.tolist()):
        # Padding repeats positions: what is held once is held everywhere.
        if position in killers or position in task.quarantined:
            continue
        alone = _one_row(task, row)
        if not any(survives(alone) for _ in range(_TRIES)):
            killers.append(position)
    return tuple(killers)


def _one_row(task: BatchTask, row: int) -> BatchTask:
    rows = slice(row, row + 1)
    return replace(
        task,
        positions=task.positions[rows],
        valid=np.ones(1, np.bool_),
        indices=task.indices[rows],
        items=task.items and task.items[rows],
        quarantined=(),
    )
