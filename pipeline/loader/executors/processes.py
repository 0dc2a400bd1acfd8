"""Batches computed by worker processes, which are replaced when they die or hang."""

from __future__ import annotations

import os
import pickle
import subprocess
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any

from penstock.core.processes import ChildProcess, pickled
from penstock.core.registry import register
from penstock.pipeline.loader.arena import Arena, Packed
from penstock.pipeline.loader.executors.supervised import (
    HELD_BY_CONSUMER,
    Job,
    SupervisedExecutor,
    Worker,
)
from penstock.pipeline.loader.placement import placement_of, warn_about_cores
from penstock.pipeline.loader.worker import OUT_OF_MEMORY, READY, TELL_STACKS, Order, Payload, serve
from penstock.pipeline.loader.worker_errors import Failure, WorkerError, describe_death

if TYPE_CHECKING:
    from penstock.pipeline.loader.compute import BatchComputer
    from penstock.pipeline.loader.device.accelerator import PageLock
    from penstock.pipeline.loader.settings import LoaderSettings

_TELL_S = 0.2


@register("engine", "processes")
class ProcessesExecutor(SupervisedExecutor):
    """``num_workers`` worker processes, which write batches to memory that both sides map.

    A process that dies or hangs is replaced, its batch is computed again, and a record that kills
    its process is quarantined.

    Raises:
        ValueError: The data set cannot be sent to processes.
    """

    def __init__(self, compute: BatchComputer, settings: LoaderSettings) -> None:
        warn_about_cores(settings)
        self._settings = settings
        self._recipe = recipe_of(compute)
        slots = settings.workers * (settings.prefetch_factor + 1) + HELD_BY_CONSUMER
        self._arena = Arena(slots)
        super().__init__(compute, settings)

    @classmethod
    def describe(cls, settings: LoaderSettings) -> str:
        """Say who computes."""
        return f"{settings.workers} worker process{'es' * (settings.workers != 1)}"

    def _start(self, number: int) -> Worker:
        call = partial(
            serve,
            recipe=self._recipe,
            descriptor=self._arena.file.descriptor,
            number=number,
            num_workers=self._num_workers,
            placement=placement_of(self._settings),
        )
        return _WorkerProcess(
            pickle.dumps((call, ())), self._arena.file.descriptor, self._settings.timeout_s
        )

    def page_lock(self, lock: PageLock) -> None:
        """Page-lock the arena where this process maps it."""
        self._arena.file.page_lock(lock)

    def _take_slot(self) -> int | None:
        return self._arena.take()

    def _lease(self, job: Job, answer: Packed) -> Any:
        assert job.slot is not None
        return self._arena.lease(job.slot, answer.size_bytes)

    def _give_back(self, job: Job) -> None:
        slot, job.slot = job.slot, None
        self._arena.give_back(slot)

    def _release(self) -> None:
        self._arena.close()


def recipe_of(compute: BatchComputer) -> bytes:
    """Pickle a computer for worker processes.

    Raises:
        ValueError: It does not pickle.
    """
    return pickled(
        Payload(compute, compute.imports),
        what="loader: the data set",
        remedy="use loader.engine=threads",
    )


class _WorkerProcess(Worker):
    """One process of this machine.

    Args:
        data: Pickled call that it computes by.
        descriptor: Descriptor of the arena's file.
        timeout_s: Seconds after which a job, or a message cut off in the middle, hangs.
    """

    def __init__(self, data: bytes, descriptor: int, timeout_s: float) -> None:
        super().__init__(timeout_s)
        self._child = ChildProcess(
            module="penstock.pipeline.loader.worker",
            message_timeout_s=timeout_s,
            starter_stays=True,
            descriptors=[descriptor],
        )
        self._child.begin(data)
        self.connection = self._child.connection
        self.sentinel = self._child.sentinel

    @property
    def pid(self) -> int:
        """Its process id."""
        return self._child.pid

    def send(self, order: Order) -> None:
        """Send an order."""
        self.connection.send_bytes(pickle.dumps(order, pickle.HIGHEST_PROTOCOL))

    def receive(self) -> Packed | Failure | None:
        """Receive the answer to its first job; None if it says that it is ready.

        Raises:
            EOFError: It is dead.
            OSError: It is dead, or stopped in the middle of a message.
        """
        answer = pickle.loads(self.connection.recv_bytes())
        return None if answer == READY else answer

    def end(self) -> None:
        """Kill it; one that hangs prints its stacks before, if it still can."""
        if self.hangs and self.is_ready and self._child.is_own:
            with suppress(ProcessLookupError, subprocess.TimeoutExpired):
                os.kill(self.pid, TELL_STACKS)
                self._child.process.wait(_TELL_S)
        self._child.end()

    @property
    def final_error(self) -> type[Exception]:
        """Exception class to raise if a task ends every worker as it ended this one."""
        return MemoryError if self._child.exit_code == OUT_OF_MEMORY else WorkerError

    def ending(self) -> str:
        """Say in one line how it ended."""
        if self.hangs:
            return (
                f"loader: worker process {self.pid} gave no batch within "
                f"timeout_s={self._timeout_s:g} s and was ended; raise loader.timeout_s if "
                f"reading is that slow; the stacks above say where it was"
            )
        return describe_death(self.pid, self._child.exit_code)
