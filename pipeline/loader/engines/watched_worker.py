"""A worker as its watch sees it: what it was given, and until when."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from itertools import count
from typing import TYPE_CHECKING, Any

from penstock.core.processes import start_patience
from penstock.pipeline.loader.contract import BatchTask
from penstock.pipeline.loader.engines.pool import Pending
from penstock.pipeline.loader.engines.slots import Slot
from penstock.pipeline.loader.engines.worker import READY, Answer

if TYPE_CHECKING:
    from multiprocessing.connection import Connection


@dataclass(slots=True)
class Job:
    """Tasks that were submitted to be computed together, and the slot that their batches go to.

    Attributes:
        bundle: What their deliveries are waited for by.
        drops: How often all that was submitted had been dropped before.
        slot: Where the batches go; None as long as no worker has it.
        quarantined: Positions of a single task that were found to kill.
        deaths: Workers that died while they were at it.
        reports_memory: Its worker answers with a MemoryError instead of ending by it.
    """

    bundle: list[Pending]
    drops: int
    slot: Slot | None = None
    quarantined: tuple[int, ...] = ()
    deaths: int = 0
    reports_memory: bool = False

    @property
    def tasks(self) -> tuple[BatchTask, ...]:
        """What is to be computed."""
        return tuple(
            replace(each.task, quarantined=(*each.task.quarantined, *self.quarantined))
            for each in self.bundle
        )

    def apart(self) -> list[Job]:
        """A job for each of its tasks."""
        return [Job([pending], self.drops, deaths=self.deaths) for pending in self.bundle]


class WatchedWorker(ABC):
    """A process somewhere, the jobs that its threads are at, and their deadlines.

    Args:
        number: Its number among the workers.
        num_threads: Tasks that it computes at a time.
        timeout_s: Seconds after which a task counts as hanging.

    Attributes:
        number: Its number among the workers.
        num_threads: Tasks that it computes at a time.
        is_ready: It has started.
        timed_out: It hangs.
        jobs: What it is at, by ticket.
        connection: Can be read when there is something to be received.
        sentinels: What can be read when it is dead.
    """

    connection: Connection
    sentinels: tuple[Any, ...] = ()

    def __init__(self, *, number: int, num_threads: int, timeout_s: float) -> None:
        self.number = number
        self.num_threads = num_threads
        self.is_ready = False
        self.timed_out = False
        self.jobs: dict[int, Job] = {}
        self._tickets = count()
        self._timeout_s = timeout_s
        # Of the start, and of the tasks that its threads are at.
        self._deadlines = {READY: time.monotonic() + start_patience(timeout_s)}

    @property
    @abstractmethod
    def pid(self) -> int | None:
        """Its process id, where it runs."""

    @property
    def room(self) -> int:
        """Tasks that it can be given; none before it is ready."""
        return self.num_threads - len(self.jobs) if self.is_ready else 0

    @property
    def deadline(self) -> float:
        """When something it is at will count as hanging, in time.monotonic."""
        return min(self._deadlines.values(), default=float("inf"))

    @abstractmethod
    def send(self, job: Job) -> None:
        """Let it compute a job into the job's slot.

        Raises:
            OSError: It is dead, or does not read.
        """

    @abstractmethod
    def probe(self, task: BatchTask) -> None:
        """Compute a task only to see whether the worker survives; raises as `send` does.

        The worker survives a MemoryError: that is no fault of the record.
        """

    @abstractmethod
    def receive(self) -> tuple[Job, Answer] | None:
        """The next answer and what it answers; None if it only says that it is ready.

        Raises:
            EOFError: It is dead.
            OSError: It is dead; BlockingIOError: it stopped in the middle of a message.
        """

    @abstractmethod
    def end(self) -> None:
        """Kill it, if it still runs, and wait until it writes nowhere. Twice does no harm."""

    @abstractmethod
    def describe_end(self) -> str:
        """One line about how it ended."""

    def _begun(self, job: Job) -> int:
        """Note that it is given a job; the ticket that the answer will have."""
        ticket = next(self._tickets)
        self.jobs[ticket] = job
        self._deadlines[ticket] = time.monotonic() + self._timeout_s
        return ticket

    def _answered(self, ticket: int, answer: Answer) -> tuple[Job, Answer] | None:
        """Note that it answered; what `receive` gives."""
        del self._deadlines[ticket]
        if ticket == READY:
            self.is_ready = True
            return None
        return self.jobs.pop(ticket), answer
