"""Workers in processes of their own, watched, and replaced when they die or hang."""

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
from multiprocessing.connection import wait
from typing import TYPE_CHECKING

from pipeline.loader.contract import BatchTask, Delivery
from pipeline.loader.ring.board import Board
from pipeline.loader.ring.clinic import Clinic
from pipeline.loader.ring.process import Job, WorkerProcess
from pipeline.loader.ring.receiving import Finished, Inbox, give_back
from pipeline.loader.ring.recruiting import Recruiter
from pipeline.loader.ring.slots import SlotPool
from pipeline.loader.ring.usage import Usage
from pipeline.loader.starting import give_up_starting, server_users, use_server
from pipeline.loader.worker import Failure, WorkerError
from pipeline.loader.worker_context import worker_context

if TYPE_CHECKING:
    from pipeline.loader.host_memory import HostMemory
    from pipeline.loader.settings import LoaderSettings

_logger = logging.getLogger(__name__)

_TICK_S = 0.5
_HELD_BY_CONSUMER = 3
"""Batches that the loop, the loader and a prefetcher hold without keeping any."""


class ProcessCrew:
    """K processes with threads, and one thread here that watches over them.

    That thread hands tasks to idle workers, gathers answers, and sees at once when a process
    ends, and by `timeout_s` when one hangs. It is replaced, and what it was at is examined (see
    `Clinic`) and computed again, bit for bit.

    Tasks that are given together are computed together, and apart when their process dies.

    Args:
        compute: A task to a delivery; sent to the processes.
        settings: Deadline and start method.
        threads: Number of threads of each process.
        read_ahead: Batches that wait in the processes, where their records are read.
        locks: Page-locks the memory in which batches arrive, for copies to a device.
        depth: Batches to be computed ahead of the consumer.
    """

    def __init__(
        self,
        compute: Callable[[BatchTask], Delivery],
        settings: LoaderSettings,
        *,
        threads: Sequence[int],
        depth: int,
        read_ahead: int = 0,
        locks: HostMemory | None = None,
    ) -> None:
        self.depth = depth
        self.usage = Usage()  # what is spent elsewhere is not known here
        context = worker_context(settings.multiprocessing_context)
        self._recruiter = Recruiter(
            context, compute, settings, threads=threads, read_ahead=read_ahead
        )
        self._num_processes = len(threads)
        self._slots = SlotPool(_HELD_BY_CONSUMER, locks=locks)
        self._board = Board()
        self._inbox = Inbox(self._board, self._slots, locks)
        self._waiting: deque[Job] = deque()
        self._oldest = 0  # tickets below it were dropped
        self._newest = -1
        self._workers: list[WorkerProcess] = []
        self._clinic = Clinic()
        self._doctor: WorkerProcess | None = None
        self._closing = False
        self._owner = os.getpid()
        self._awake, self._waker = context.Pipe(duplex=False)
        self._watch = threading.Thread(target=self._run, name="penstock-watch", daemon=True)
        self._started = threading.Event()
        self._have_started = False
        self._abandoned = False
        if settings.multiprocessing_context == "forkserver":
            use_server(id(self))
        self._watch.start()
        if settings.multiprocessing_context == "fork":
            # A lock that this thread holds meanwhile, of an import, would stay held in them.
            self._started.wait()
        atexit.register(self.close)

    @property
    def pids(self) -> list[int | None]:
        """Process ids of the workers, of the one that examines last."""
        return [worker.process.pid for worker in self._all()]

    @property
    def rows_together(self) -> int:
        """Rows of small batches to be computed at once, which the first one tells."""
        return self._inbox.rows_together

    @property
    def is_own(self) -> bool:
        """Whether the processes are those of this one, and not of one that it is a copy of."""
        return os.getpid() == self._owner

    @property
    def is_ready(self) -> bool:
        """Whether all processes have started, once; raises why they cannot."""
        if self._board.error is not None:
            raise self._board.error
        if not self._have_started and self._started.is_set():
            self._have_started = all(worker.is_ready for worker in self._workers)
        return self._have_started

    def _all(self) -> list[WorkerProcess]:
        return [*self._workers, *([self._doctor] if self._doctor else [])]

    def submit(self, tickets: Sequence[int], tasks: Sequence[BatchTask]) -> None:
        """Give tasks to the next worker that is idle."""
        self._newest = tickets[-1]
        others = tuple(zip(tickets[1:], tasks[1:], strict=True))
        self._waiting.append(Job(tickets[0], tasks[0], others=others))
        self._wake()

    def take(self, ticket: int) -> Delivery:
        """Wait for a delivery. The watch keeps the deadlines, and replaces what hangs.

        Raises:
            WorkerError: Workers cannot be started, or a batch ends every process.
            Exception: What the computation raised.
        """
        while (delivery := self._inbox.take(ticket, _TICK_S)) is None:
            assert self._watch.is_alive(), "the watch says what ends it"
        return delivery

    def drop(self) -> None:
        """Forget all that was submitted. What is being computed is finished and left aside."""
        if not self.is_own:
            return
        self._oldest = self._newest + 1
        self._waiting.clear()
        self._inbox.clear()
        self._wake()

    def close(self) -> None:
        """End the processes at once; batches that were delivered stay as they are."""
        if not self.is_own:
            return
        atexit.unregister(self.close)
        self._closing = True
        self._recruiter.close()
        self.drop()
        self._board.close()
        if self._watch is not threading.current_thread():
            if give_up_starting(self._started, id(self)):
                self._watch.join()
            self._abandoned = True
            if not self._watch.is_alive():
                self._release()

    def _release(self) -> None:
        """Give back what the watch no longer uses; twice does no harm."""
        server_users.discard(id(self))
        self._awake.close()
        self._waker.close()
        self._slots.close()

    def _wake(self) -> None:
        with suppress(OSError):  # the watch ended, and said why
            self._waker.send_bytes(b"w")

    def _run(self) -> None:
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})  # workers inherit it
        try:
            for number in range(self._num_processes):
                if not self._closing:
                    self._workers.append(self._recruiter.start(number))
            self._started.set()
            while not self._closing:
                self._hand_out()
                self._look()
        except BaseException as error:
            self._board.fail(error)
        finally:
            self._started.set()
            workers = self._all()
            self._workers, self._doctor = [], None
            for worker in workers:
                worker.end()
            held = [job for worker in workers for job in worker.jobs.values()]
            for job in [*held, *self._clinic.drop()]:
                give_back(job, self._slots)
            if self._abandoned:
                self._release()

    def _hand_out(self) -> None:
        """Give waiting jobs to idle threads, and the clinic's next order to its process."""
        while self._waiting:
            worker = max(self._workers, key=lambda worker: worker.room)
            if not worker.room:
                break
            try:
                job = self._waiting.popleft()
            except IndexError:  # dropped meanwhile
                break
            job.slot = self._slots.take()
            self._send(worker, job)
        if self._clinic and self._doctor is None:
            self._doctor = self._recruiter.start(0, examines=True)
        elif self._doctor is not None and not self._clinic:
            self._doctor.end()
            self._doctor = None
        if self._doctor is not None and self._doctor.room:
            job, probe = self._clinic.next_order()
            self._send(self._doctor, job, probe=probe)

    def _send(self, worker: WorkerProcess, job: Job, *, probe: bool = False) -> None:
        try:
            worker.send(job, probe=probe)
        except OSError as error:
            worker.timed_out = isinstance(error, BlockingIOError)
            self._bury(worker)

    def _look(self) -> None:
        """Wait until something happens, and see to it."""
        workers = self._all()
        first = min(worker.deadline for worker in workers)
        timeout_s = None if first == float("inf") else max(0.0, first - time.monotonic())
        sources = [self._awake, *(worker.connection for worker in workers)]
        ready = set(wait([*sources, *(worker.process.sentinel for worker in workers)], timeout_s))
        if self._awake in ready:
            while self._awake.poll():
                self._awake.recv_bytes()
            self._discharge()
            return
        now = time.monotonic()
        for worker in workers:
            if worker.connection in ready:
                self._receive(worker)
            elif worker.process.sentinel in ready:
                self._bury(worker)
            elif worker.deadline <= now:
                worker.timed_out = True
                self._bury(worker)

    def _receive(self, worker: WorkerProcess) -> None:
        try:
            received = worker.receive()
        except (EOFError, OSError) as error:
            worker.timed_out = isinstance(error, BlockingIOError)
            return self._bury(worker)
        if received is None:
            self._recruiter.is_ready()
        elif worker is not self._doctor or self._clinic.survived():
            self._put(received[0], Finished(*received))

    def _put(self, job: Job, outcome: Finished | Failure) -> None:
        if job.ticket >= self._oldest:
            self._board.put(job.ticket, outcome)
        if job.ticket < self._oldest or isinstance(outcome, Failure):
            give_back(job, self._slots)

    def _bury(self, worker: WorkerProcess) -> None:
        """Replace a process that died or hangs, and see to what it was at."""
        worker.end()
        how = worker.describe_end()
        self._recruiter.died(worker)
        if worker is self._doctor:
            self._doctor = None
            if worker.jobs and (job := self._clinic.died()) is not None:
                text = f"{how}; so it was twice, with batch {job.task.number} of epoch "
                text += f"{job.task.epoch} alone, though no position of it does that by itself"
                self._put(job, Failure(WorkerError(text), how))
            return
        jobs = list(worker.jobs.values())
        lost = sum(1 + len(job.others) for job in jobs if job.ticket >= self._oldest)
        _logger.warning("%s; it is replaced, and its %d batches are computed again", how, lost)
        again: list[Job] = []
        for job in jobs:
            wanted = job.ticket >= self._oldest
            if wanted and (worker.timed_out or not job.others):
                for each in job.apart():
                    each.slot = each.slot or self._slots.take()
                    self._clinic.admit(each)
            else:
                give_back(job, self._slots)
                # The clinic looks at every row. First it shows which of these batches it was.
                again += job.apart() if wanted else []
        self._waiting.extendleft(reversed(again))
        self._workers[self._workers.index(worker)] = self._recruiter.start(worker.number)

    def _discharge(self) -> None:
        """Forget what the clinic examines for an iteration that was broken off."""
        if not self._clinic or self._clinic.first_ticket >= self._oldest:
            return
        if self._doctor is not None:
            self._doctor.end()
            self._doctor = None
        for job in self._clinic.drop():
            give_back(job, self._slots)
