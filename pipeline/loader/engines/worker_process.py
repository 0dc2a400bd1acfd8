"""A worker process as the consumer's process sees it: what it was given, and until when."""

from __future__ import annotations

import os
import pickle
import time
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import count, islice
from typing import TYPE_CHECKING, Any

from penstock.core.processes import ChildProcess, send_descriptor, start_patience
from penstock.pipeline.loader.contract import BatchTask
from penstock.pipeline.loader.engines.pool import Pending
from penstock.pipeline.loader.engines.slots import Slot
from penstock.pipeline.loader.engines.worker import (
    OUT_OF_MEMORY,
    TELL_STACKS,
    Answer,
    Order,
    Payload,
    run_worker,
)
from penstock.pipeline.loader.worker_errors import describe_death

if TYPE_CHECKING:
    from penstock.pipeline.loader.compute import BatchComputer

_TELL_S = 0.2


@dataclass(slots=True)
class Job:
    """Tasks that were submitted to be computed together, and the slot that their batches go to.

    Attributes:
        bundle: What their deliveries are waited for by.
        drops: How often all that was submitted had been dropped before.
        slot: Where the batches go; None as long as no process has it.
        quarantined: Positions of a single task that were found to kill.
    """

    bundle: list[Pending]
    drops: int
    slot: Slot | None = None
    quarantined: tuple[int, ...] = ()

    @property
    def tasks(self) -> tuple[BatchTask, ...]:
        """What is to be computed."""
        return tuple(
            replace(each.task, quarantined=(*each.task.quarantined, *self.quarantined))
            for each in self.bundle
        )

    def apart(self) -> list[Job]:
        """A job for each of its tasks."""
        return [Job([pending], self.drops) for pending in self.bundle]


class WorkerProcess:
    """One process, the jobs that it is at, and their deadlines.

    Args:
        context: The multiprocessing context that says how it starts.
        compute: What it computes with.
        number: Its number among the processes.
        num_processes: Their number.
        num_threads: Tasks that it computes at a time.
        read_ahead: Tasks that it is given beyond those, to read their records.
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
        read_ahead: int = 0,
        timeout_s: float,
    ) -> None:
        self.number = number
        self.num_threads = num_threads
        self.is_ready = False
        self.timed_out = False
        self.jobs: dict[int, Job] = {}
        self._tickets = count()
        self._read_ahead = read_ahead
        self._timeout_s = timeout_s
        # Of the start, and of the tasks that its threads are at.
        self._deadlines: dict[int, float] = {-1: time.monotonic() + start_patience(timeout_s)}
        self._slots: set[int] = set()
        try:
            self._child = ChildProcess(
                context,
                run_worker,
                Payload(compute, compute.imports),
                *(number, num_processes, num_threads, read_ahead),
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
        self.sentinel: int = self._child.process.sentinel

    @property
    def pid(self) -> int | None:
        """Its process id."""
        return self._child.pid

    @property
    def room(self) -> int:
        """Tasks that it can be given; none before the process is ready."""
        return self.num_threads + self._read_ahead - len(self.jobs) if self.is_ready else 0

    @property
    def deadline(self) -> float:
        """When something it is at will count as hanging, in time.monotonic."""
        return min(self._deadlines.values(), default=float("inf"))

    def send(self, job: Job) -> None:
        """Let it compute a job.

        Raises:
            OSError: It is dead, or does not read.
        """
        slot = job.slot
        assert slot is not None
        is_new = slot.number not in self._slots
        task, *others = job.tasks
        self._order(job, Order(task, slot.number, is_new, tuple(others)))
        if is_new:
            send_descriptor(self.connection, slot.fd)
            self._slots.add(slot.number)

    def probe(self, task: BatchTask) -> None:
        """Let it compute a task only to find out whether it survives; raises as `send` does."""
        self._order(Job([], 0), Order(task))

    def _order(self, job: Job, order: Order) -> None:
        ticket = next(self._tickets)
        self.jobs[ticket] = job
        self._expect()
        self.connection.send_bytes(pickle.dumps((ticket, order)))

    def receive(self) -> tuple[Job, Answer] | None:
        """The next answer and what it answers; None if it only says that it is ready.

        Raises:
            EOFError: It is dead.
            OSError: It is dead, or stopped in the middle of a message.
        """
        ticket, answer = pickle.loads(self.connection.recv_bytes())
        del self._deadlines[ticket]
        if ticket < 0:
            self.is_ready = True
            return None
        job = self.jobs.pop(ticket)
        self._expect()
        return job, answer

    def _expect(self) -> None:
        """Give the tasks that its threads are at a deadline: the oldest ones, in order."""
        for ticket in islice(self.jobs, self.num_threads):
            self._deadlines.setdefault(ticket, time.monotonic() + self._timeout_s)

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
