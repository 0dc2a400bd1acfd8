"""Executors whose workers are other processes, which are replaced when they die or hang."""

from __future__ import annotations

import atexit
import logging
import os
import signal
import threading
import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from multiprocessing.connection import Pipe, wait
from typing import TYPE_CHECKING, Any

from penstock.core.processes import start_patience
from penstock.pipeline.loader.arena import Packed, unpack
from penstock.pipeline.loader.contract import (
    BatchTask,
    Delivery,
    Executor,
    Future,
    WorkerDiedError,
)
from penstock.pipeline.loader.worker import Order
from penstock.pipeline.loader.worker_errors import Failure, LoaderClosedError, WorkerError

if TYPE_CHECKING:
    from penstock.pipeline.loader.compute import BatchComputer
    from penstock.pipeline.loader.settings import LoaderSettings

_logger = logging.getLogger(__name__)

_FAILED_STARTS = 3
"""Starts of every worker that may fail in a row."""
_AT_ONCE = 2
"""Jobs of a worker: one to compute, and one to begin with at once."""
_END_S = 15.0
HELD_BY_CONSUMER = 3
"""Batches that the loop, the loader and a prefetcher hold without keeping any."""


class Job:
    """Tasks that are computed together.

    Attributes:
        future: Their result.
        tasks: The tasks.
        probes: Only surviving matters.
        slot: Slot of the arena that their batches go to.
    """

    __slots__ = ("future", "probes", "slot", "tasks")

    def __init__(self, tasks: Sequence[BatchTask], *, probes: bool) -> None:
        self.future = Future()
        self.tasks = tasks
        self.probes = probes
        self.slot: int | None = None

    @property
    def order(self) -> Order:
        """The order to a worker."""
        return Order(self.tasks, self.slot, self.probes)


class Worker(ABC):
    """A process somewhere, and the jobs that it was given, of which it computes the first.

    Args:
        timeout_s: Seconds after which a job counts as hanging.

    Attributes:
        is_ready: It has started.
        hangs: It did not answer in time.
        jobs: Its jobs, the one that it computes first.
        connection: Can be read when there is something to receive.
        sentinel: Can be read when it is dead.
    """

    connection: Any
    sentinel: Any

    def __init__(self, timeout_s: float) -> None:
        self.is_ready = False
        self.hangs = False
        self.jobs: deque[Job] = deque()
        self._timeout_s = timeout_s
        self._deadline = time.monotonic() + start_patience(timeout_s)

    @property
    @abstractmethod
    def pid(self) -> int | None:
        """Its process id, where it runs."""

    @property
    def deadline(self) -> float:
        """When it will count as hanging, in time.monotonic."""
        return self._deadline if self.jobs or not self.is_ready else float("inf")

    def give(self, job: Job) -> None:
        """Let it compute a job; raises OSError if it is dead, or does not read."""
        self.jobs.append(job)
        if len(self.jobs) == 1:
            self._deadline = time.monotonic() + self._timeout_s
        self.send(job.order)

    def answered(self) -> Job:
        """Take the job that it has just answered."""
        self._deadline = time.monotonic() + self._timeout_s
        return self.jobs.popleft()

    @abstractmethod
    def send(self, order: Order) -> None:
        """Send an order."""

    @abstractmethod
    def receive(self) -> Packed | Failure | None:
        """Receive the answer to its first job; None if it is ready, a failure if it cannot be.

        Raises:
            EOFError: It is dead.
            OSError: It is dead; BlockingIOError: it stopped in the middle of a message.
        """

    @property
    def final_error(self) -> type[Exception]:
        """Exception class to raise if a task ends every worker as it ended this one."""
        return WorkerError

    @abstractmethod
    def end(self) -> None:
        """Kill it, if it still runs, and wait until it writes nowhere. Twice does no harm."""

    @abstractmethod
    def ending(self) -> str:
        """Say in one line how it ended."""


class SupervisedExecutor(Executor):
    """Workers of some kind, and one thread here that supervises them.

    The thread gives jobs to workers, takes their answers, and sees at once when a worker ends, and
    by `timeout_s` when one hangs. That worker is replaced; the job that it computed raises
    `WorkerDiedError`, and the one behind it is given to another.
    """

    bundles = True
    retries = True

    def __init__(self, compute: BatchComputer, settings: LoaderSettings) -> None:
        self.depth = settings.workers * settings.prefetch_factor
        self._num_workers = settings.workers
        self._waiting: deque[Job] = deque()
        self._workers: list[Worker] = []
        self._failed_starts = 0
        self._error: BaseException | None = None
        self._is_closing = False
        self._owner = os.getpid()
        self._awake, self._waker = Pipe(duplex=False)
        self._thread = threading.Thread(target=self._run, name="penstock-workers", daemon=True)
        self._thread.start()
        atexit.register(self.close)

    @property
    def pids(self) -> list[int | None]:
        """Process ids of the workers."""
        return [worker.pid for worker in self._workers]

    def submit(self, tasks: Sequence[BatchTask], *, probes: bool = False) -> Future:
        """Give tasks to the next worker that is idle; probes and tasks of dead workers first."""
        job = Job(tasks, probes=probes)
        if probes:
            self._waiting.appendleft(job)
        else:
            self._waiting.append(job)
        if self._error is not None:
            job.future.set(self._error)
        self._wake()
        return job.future

    def drop(self) -> None:
        """Drop what waits; what is being computed is finished and left aside."""
        if os.getpid() == self._owner:
            self._wake()

    def close(self) -> None:
        """End the workers at once; batches that were delivered stay as they are."""
        if os.getpid() != self._owner:
            return
        atexit.unregister(self.close)
        self._is_closing = True
        self._error = self._error or LoaderClosedError()
        self._wake()
        if self._thread is not threading.current_thread():
            self._thread.join(_END_S)

    @abstractmethod
    def _start(self, number: int) -> Worker:
        """Start a worker.

        Raises:
            WorkerError: It could not be started; others may be.
            ValueError: The data set cannot be sent to workers.
        """

    def _lease(self, job: Job, answer: Packed) -> Any:
        """Return the memory of an answer, whose slot comes back with it; None: in the answer."""
        return None

    def _take_slot(self) -> int | None:
        return None

    def _give_back(self, job: Job) -> None:
        """Let the slot of a job be used again."""

    def _release(self) -> None:
        """Give back memory when the workers have ended."""

    def _wake(self) -> None:
        with suppress(OSError):  # the thread ended, and said why
            self._waker.send_bytes(b"w")

    def _run(self) -> None:
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})  # workers inherit it
        try:
            for number in range(self._num_workers):
                if not self._is_closing:
                    self._workers.append(self._started(number))
            while not self._is_closing:
                self._hand_out()
                self._look()
        except BaseException as error:
            self._error = self._error or error
        finally:
            workers, self._workers = self._workers, []
            for worker in workers:
                worker.end()
                for job in worker.jobs:
                    self._fail(job)
            self._waker.close()
            while self._waiting:
                self._fail(self._waiting.popleft())
            self._awake.close()
            self._release()

    def _fail(self, job: Job) -> None:
        assert self._error is not None
        job.future.set(self._error)

    def _started(self, number: int) -> Worker:
        while True:
            try:
                return self._start(number)
            except WorkerError as error:
                if self._is_closing:
                    raise
                self._count_failed_start(error)

    def _count_failed_start(self, error: WorkerError) -> None:
        self._failed_starts += 1
        if self._failed_starts >= _FAILED_STARTS * self._num_workers:
            raise error

    def _hand_out(self) -> None:
        """Give waiting jobs to workers, a second one only where all workers have one."""
        ready = [worker for worker in self._workers if worker.is_ready]
        most = _AT_ONCE if len(ready) == len(self._workers) else 1
        while self._waiting and ready:
            worker = min(ready, key=lambda worker: len(worker.jobs))
            if len(worker.jobs) >= most:
                break
            job = self._waiting.popleft()
            if job.future.is_cancelled:
                continue
            job.slot = None if job.probes else self._take_slot()
            try:
                worker.give(job)
            except OSError as error:
                worker.hangs = isinstance(error, BlockingIOError)
                return self._replace(worker)

    def _look(self) -> None:
        """Wait until something happens, and act on it."""
        workers = list(self._workers)
        first = min(worker.deadline for worker in workers)
        timeout_s = None if first == float("inf") else max(0.0, first - time.monotonic())
        sources = [worker.connection for worker in workers]
        ready = set(wait([self._awake, *sources, *(w.sentinel for w in workers)], timeout_s))
        if self._awake in ready:
            while self._awake.poll():
                self._awake.recv_bytes()
        now = time.monotonic()
        for worker in workers:
            if worker.connection in ready:
                self._receive(worker)
            elif worker.sentinel in ready:
                self._replace(worker)
            elif worker.deadline <= now:
                worker.hangs = True
                self._replace(worker)

    def _receive(self, worker: Worker) -> None:
        try:
            answer = worker.receive()
        except (EOFError, OSError) as error:
            worker.hangs = isinstance(error, BlockingIOError)
            return self._replace(worker)
        if isinstance(answer, Failure):
            raise answer.exception()
        if answer is None:
            worker.is_ready = True
            self._failed_starts = 0
            return
        job = worker.answered()
        if job.future.is_cancelled or job.slot is None or not answer.size_bytes:
            self._give_back(job)
            memory = None
        else:
            memory = self._lease(job, answer)
        if not job.future.is_cancelled:
            job.future.set([self._outcome(each) for each in unpack(answer, memory)])

    @staticmethod
    def _outcome(sent: Delivery | Failure) -> Delivery | BaseException:
        return sent.exception() if isinstance(sent, Failure) else sent

    def _replace(self, worker: Worker) -> None:
        """Replace a worker that died or hangs, and let the scheduler act on what it computed."""
        worker.end()
        how = worker.ending()
        if not worker.is_ready:
            self._count_failed_start(WorkerError(how))
        jobs, worker.jobs = worker.jobs, deque()
        for job in jobs:
            self._give_back(job)
        wanted = [job for job in jobs if not job.future.is_cancelled]
        probes = any(job.probes for job in jobs)
        if not probes:
            self.restarts += 1
            _logger.warning("%s; it is replaced, and its batches are computed again", how)
        number = self._workers.index(worker)
        self._workers[number] = self._started(number)
        for job in reversed(wanted):
            if job is jobs[0]:
                job.future.set(WorkerDiedError(how, worker.final_error))
            else:
                self._waiting.appendleft(job)  # it was not begun
