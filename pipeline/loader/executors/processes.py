"""Batches computed by worker processes, which are replaced when they die or hang."""

from __future__ import annotations

import logging
import pickle
import signal
import subprocess
import threading
import time
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from multiprocessing.connection import Pipe, wait
from typing import TYPE_CHECKING

from penstock.core.processes import ChildProcess, pickled, start_patience
from penstock.core.registry import register
from penstock.pipeline.loader.arena import Arena, Packed, slots_of, unpack
from penstock.pipeline.loader.contract import BatchTask, Executor, Future, WorkerDiedError
from penstock.pipeline.loader.worker import OUT_OF_MEMORY, READY, Payload, serve
from penstock.pipeline.loader.worker_errors import (
    Failure,
    LoaderClosedError,
    WorkerError,
    describe_death,
)

if TYPE_CHECKING:
    from penstock.pipeline.loader.compute import BatchComputer
    from penstock.pipeline.loader.settings import LoaderSettings

_logger = logging.getLogger(__name__)

_FAILED_STARTS = 3
"""Starts of every worker that may fail in a row."""
_AT_ONCE = 2
"""Jobs of a worker: one to compute, and one to begin with at once."""
_END_S = 15.0
_EXIT_S = 1.0
_NEVER = float("inf")


def recipe_of(compute: BatchComputer) -> bytes:
    """Pickle a computer for worker processes; raise ValueError if it does not pickle."""
    return pickled(
        Payload(compute, compute.imports),
        what="loader: the data set",
        remedy="use loader.engine=threads",
    )


@dataclass(eq=False, slots=True)
class _Job:
    """Tasks that are computed together, the slot of their batches, and their result."""

    tasks: Sequence[BatchTask]
    slot: int | None = None
    future: Future = field(default_factory=Future)


class _Worker:
    """A worker process, and the jobs that it was given, of which it computes the first.

    `data` is the pickled call that it computes by. A job hangs after its `limit_s`, and a message
    cut off in the middle after `timeout_s` seconds.
    """

    def __init__(self, data: bytes, descriptor: int, timeout_s: float) -> None:
        self.is_ready = self.hangs = False
        self.jobs: deque[_Job] = deque()
        self._timeout_s, self._limit_s = timeout_s, start_patience(timeout_s)
        self._deadline = time.monotonic() + self._limit_s
        self.child = ChildProcess(
            module="penstock.pipeline.loader.worker",
            message_timeout_s=timeout_s,
            descriptors=[descriptor],
        )
        self.child.begin(data)

    @property
    def deadline(self) -> float:
        """When it will count as hanging, in time.monotonic."""
        return self._deadline if self.jobs or not self.is_ready else _NEVER

    def give(self, job: _Job) -> None:
        """Let it compute a job; raise OSError if it is dead, or does not read."""
        self.jobs.append(job)
        if len(self.jobs) == 1:
            self._begin()
        order = pickle.dumps((job.tasks, job.slot), pickle.HIGHEST_PROTOCOL)
        self.child.connection.send_bytes(order)

    def finish_job(self) -> None:
        """Leave the job that it has answered."""
        self.jobs.popleft()
        if self.jobs:
            self._begin()

    def _begin(self) -> None:
        self._limit_s = self.jobs[0].tasks[0].limit_s(self._timeout_s)
        self._deadline = time.monotonic() + self._limit_s

    def end(self) -> WorkerDiedError:
        """Kill it, and say how it ended."""
        child = self.child
        child.end()
        how = describe_death(child.pid, child.process.poll())
        if self.hangs:
            how = (
                f"loader: worker process {child.pid} gave no batch within {self._limit_s:g} s "
                f"and was ended; raise loader.timeout_s={self._timeout_s:g}, or find where it "
                f"hangs with loader.engine=inline"
            )
        is_out_of_memory = child.process.poll() == OUT_OF_MEMORY
        return WorkerDiedError(how, MemoryError if is_out_of_memory else WorkerError)


@register("engine", "processes")
class ProcessesExecutor(Executor):
    """``num_workers`` worker processes, which write batches to memory that both sides map.

    One thread here gives jobs to workers, takes their answers, and sees at once when a worker ends,
    and by `timeout_s` when one hangs. That worker is replaced; the job that it computed raises
    `WorkerDiedError`, and the one behind it is given to another.

    Raises:
        ValueError: The data set cannot be sent to processes.
    """

    bundles = True
    times_out = True
    arena: Arena

    def __init__(self, compute: BatchComputer, settings: LoaderSettings) -> None:
        self._recipe = recipe_of(compute)
        self._settings = settings
        self.depth = settings.workers * settings.prefetch_factor
        self.arena = Arena(slots_of(settings), is_shared=True)
        self._waiting: deque[_Job] = deque()
        self._workers: list[_Worker] = []
        self._failed_starts = 0
        self._error: BaseException | None = None
        self._is_closing = False
        self._awake, self._waker = Pipe(duplex=False)
        self._thread = threading.Thread(target=self._run, name="penstock-workers", daemon=True)
        self._thread.start()

    def submit(self, tasks: Sequence[BatchTask]) -> Future:
        """Give tasks to the next worker that is idle; tasks of dead workers come first."""
        job = _Job(tasks)
        self._waiting.append(job)
        if self._error is not None:
            job.future.set(self._error)
        self._wake()
        return job.future

    def close(self) -> None:
        """End the workers at once; batches that were delivered stay as they are."""
        self._is_closing = True
        self._error = self._error or LoaderClosedError()
        self._wake()
        if self._thread is not threading.current_thread():
            self._thread.join(_END_S)

    def _wake(self) -> None:
        with suppress(OSError):  # the thread ended, and said why
            self._waker.send_bytes(b"w")

    def _run(self) -> None:
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})  # workers inherit it
        try:
            for _ in range(self._settings.workers):
                if not self._is_closing:
                    self._workers.append(self._start())
            while not self._is_closing:
                self._hand_out()
                self._look()
        except BaseException as error:
            self._error = self._error or error
        finally:
            assert self._error is not None
            workers, self._workers = self._workers, []
            for worker in workers:
                worker.end()
                for job in worker.jobs:
                    job.future.set(self._error)
            self._waker.close()
            while self._waiting:
                self._waiting.popleft().future.set(self._error)
            self._awake.close()
            self.arena.memory.close()

    def _start(self) -> _Worker:
        descriptor = self.arena.memory.descriptor
        call = serve, (self._recipe, descriptor, self._settings)
        return _Worker(pickle.dumps(call), descriptor, self._settings.timeout_s)

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
            job.slot = self.arena.take()
            try:
                worker.give(job)
            except OSError as error:
                return self._replace(worker, hangs=isinstance(error, BlockingIOError))

    def _look(self) -> None:
        """Wait until something happens, and act on it."""
        workers = list(self._workers)
        first = min(worker.deadline for worker in workers)
        timeout_s = None if first == _NEVER else max(0.0, first - time.monotonic())
        children = [worker.child for worker in workers]
        sources = {self._awake, *(c.connection for c in children), *(c.sentinel for c in children)}
        ready = set(wait(sources, timeout_s))
        if self._awake in ready:
            while self._awake.poll():
                self._awake.recv_bytes()
        now = time.monotonic()
        for worker in workers:
            if worker.child.connection in ready:
                try:
                    self._take(worker, pickle.loads(worker.child.connection.recv_bytes()))
                except (EOFError, OSError) as error:
                    self._replace(worker, hangs=isinstance(error, BlockingIOError))
            elif worker.child.sentinel in ready:
                self._replace(worker)
            elif worker.deadline <= now:
                self._replace(worker, hangs=True)

    def _take(self, worker: _Worker, answer: Packed | Failure | str) -> None:
        """Take the answer of a worker to its first job, or that it is ready, or cannot be."""
        if isinstance(answer, Failure):
            raise answer.exception()
        if answer == READY:
            worker.is_ready = True
            self._failed_starts = 0
            return
        assert isinstance(answer, Packed)
        job, memory = worker.jobs[0], None
        if job.slot is not None and answer.size_bytes and not job.future.is_cancelled:
            memory = self.arena.lease(job.slot, answer.size_bytes)
        else:
            self.arena.give_back(job.slot)
        if not job.future.is_cancelled:
            sent = unpack(answer, memory)
            job.future.set([x.exception() if isinstance(x, Failure) else x for x in sent])
        worker.finish_job()

    def _replace(self, worker: _Worker, *, hangs: bool = False) -> None:
        """Replace a worker that died or hangs, and let the scheduler act on what it computed."""
        worker.hangs = hangs
        if not hangs:
            with suppress(subprocess.TimeoutExpired):
                worker.child.process.wait(_EXIT_S)  # its own exit code says more than our kill
        death = worker.end()
        if not worker.is_ready:
            self._failed_starts += 1
            if self._failed_starts >= _FAILED_STARTS * self._settings.workers:
                raise WorkerError(str(death))
        self.restarts += 1
        _logger.warning("%s; it is replaced, and its batches are computed again", death)
        number = self._workers.index(worker)
        self._workers[number] = self._start()
        for at, job in reversed([*enumerate(worker.jobs)]):
            self.arena.give_back(job.slot)
            if at and not job.future.is_cancelled:
                self._waiting.appendleft(job)  # it was not begun
            else:
                job.future.set(death)
