"""A worker process as the consumer's process sees it, and how it starts."""

from __future__ import annotations

import os
import pickle
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from penstock.core.processes import (
    ChildProcess,
    end_unused_server,
    ensure_server,
    has_server_ended,
    send_descriptor,
    start_deadline,
    start_server,
    worker_context,
)
from penstock.pipeline.loader.contract import BatchTask
from penstock.pipeline.loader.engines.pool import warn_about_cores
from penstock.pipeline.loader.engines.slots import Slot, SlotPool
from penstock.pipeline.loader.engines.watched_worker import Job, WatchedWorker
from penstock.pipeline.loader.engines.worker import (
    OUT_OF_MEMORY,
    PRELOADED,
    TELL_STACKS,
    Answer,
    Order,
    Payload,
    run_worker,
)
from penstock.pipeline.loader.placement import Placement, placement_of
from penstock.pipeline.loader.worker_errors import WorkerError, describe_death

if TYPE_CHECKING:
    from penstock.pipeline.loader.compute import BatchComputer
    from penstock.pipeline.loader.settings import LoaderSettings

_TELL_S = 0.2


class WorkerProcess(WatchedWorker):
    """One process of this machine.

    Args:
        context: The multiprocessing context that says how it starts.
        compute: What it computes with.
        number: Its number among the processes.
        num_processes: Their number.
        num_threads: Tasks that it computes at a time.
        placement: Where its threads run.
        timeout_s: Seconds after which a task, or a message cut off in the middle, counts as
            hanging.

    Raises:
        ValueError: The computer does not pickle.
        Exception: Whatever else pickling it raises.
    """

    def __init__(
        self,
        context: Any,
        compute: BatchComputer,
        *,
        number: int,
        num_processes: int,
        num_threads: int,
        placement: Placement,
        timeout_s: float,
    ) -> None:
        super().__init__(number=number, num_threads=num_threads, timeout_s=timeout_s)
        self._slots: dict[int, Slot] = {}
        try:
            self._child = ChildProcess(
                context,
                run_worker,
                Payload(compute, compute.imports),
                *(number, num_processes, num_threads, placement),
                message_timeout_s=timeout_s,
            )
        except (TypeError, AttributeError, pickle.PicklingError) as error:
            if "pickle" not in str(error):
                raise
            raise ValueError(
                f"loader: the data set cannot be sent to workers: {error}; use "
                f"loader.multiprocessing_context=fork or loader.engine=threads"
            ) from error
        self.connection = self._child.connection
        self.sentinels = (self._child.process.sentinel,)

    @property
    def pid(self) -> int | None:
        """Its process id."""
        return self._child.pid

    def send(self, job: Job) -> None:
        """Let it compute a job.

        Raises:
            OSError: It is dead, or does not read.
        """
        slot = job.slot
        assert slot is not None
        is_new = self._slots.get(slot.number) is not slot
        task, *others = job.tasks
        order = Order(task, slot.number, is_new, tuple(others), job.reports_memory)
        self._order(job, order)
        if is_new:
            send_descriptor(self.connection, slot.fd)
            self._slots[slot.number] = slot

    def probe(self, task: BatchTask) -> None:
        """Let it compute a task only to find out whether it survives; raises as `send` does."""
        self._order(Job([], 0), Order(task, reports_memory=True))

    def _order(self, job: Job, order: Order) -> None:
        self.connection.send_bytes(pickle.dumps((self._begun(job), order)))

    def receive(self) -> tuple[Job, Answer] | None:
        """The next answer and what it answers; None if it only says that it is ready.

        Raises:
            EOFError: It is dead.
            OSError: It is dead, or stopped in the middle of a message.
        """
        ticket, answer = pickle.loads(self.connection.recv_bytes())
        return self._answered(ticket, answer)

    def end(self) -> None:
        """Kill it, if it still runs, and wait until it is gone and writes nowhere.

        One that hangs says where, if it still can.
        """
        if self.timed_out and self.is_ready and self.pid is not None:
            with suppress(ProcessLookupError):
                os.kill(self.pid, TELL_STACKS)
            self._child.process.join(_TELL_S)
        self._child.end()

    def describe_end(self) -> str:
        """One line about how it ended."""
        if self.timed_out:
            return (
                f"loader: worker process {self.pid} gave no batch within "
                f"timeout_s={self._timeout_s:g} s and was ended; raise loader.timeout_s if "
                f"reading is that slow; the stacks above say where it was"
            )
        if self._child.process.exitcode == OUT_OF_MEMORY:
            return (
                f"loader: worker process {self.pid} got no memory (MemoryError); lower "
                f"loader.num_workers, loader.prefetch_factor or loader.batch_size"
            )
        death = describe_death([self._child.process])
        return death or f"loader: worker process {self.pid} does not answer"


class ProcessStarter:
    """Starts worker processes of this machine.

    Args:
        compute: A task to a delivery; sent to the processes.
        settings: Deadline, start method, and where processes run.
        num_processes: How many there will be.
    """

    lives = 1

    def __init__(
        self, compute: BatchComputer, settings: LoaderSettings, num_processes: int
    ) -> None:
        self._compute = compute
        self._settings = settings
        self._num_processes = num_processes
        self._placement = placement_of(settings)
        self._context = worker_context(settings.multiprocessing_context, PRELOADED)
        self.forks = settings.multiprocessing_context == "fork"
        warn_about_cores(settings)

    @staticmethod
    def prepare(settings: LoaderSettings) -> None:
        """Start the server that processes are forked from."""
        start_server(settings.multiprocessing_context, PRELOADED)

    def slots(self, held: int) -> SlotPool:
        """Memory that both sides map."""
        return SlotPool(held)

    def start(self, number: int, *, num_threads: int, probes: bool) -> WorkerProcess:
        """Start a process.

        Raises:
            WorkerError: The server that it is forked from ended meanwhile.
            ValueError: The data set cannot be sent to processes.
        """
        server = ensure_server(self._settings.multiprocessing_context)
        try:
            with start_deadline(self._settings.timeout_s):
                return WorkerProcess(
                    self._context,
                    self._compute,
                    number=number,
                    num_processes=self._num_processes,
                    num_threads=num_threads,
                    placement=self._placement,
                    timeout_s=self._settings.timeout_s,
                )
        except (EOFError, ConnectionError) as error:
            if server is None or not has_server_ended(server):
                raise
            how = f"loader: process {server}, which forks the worker processes, ended"
            raise WorkerError(how) from error

    def hurry(self) -> None:
        """End the server that a start waits for."""
        end_unused_server()
