"""A worker process as the consumer's process sees it."""

from __future__ import annotations

import os
import pickle
import socket
import struct
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import islice
from multiprocessing.connection import Connection
from typing import Any

from pipeline.loader.contract import BatchTask, Delivery
from pipeline.loader.ring.child import (
    OUT_OF_MEMORY,
    TELL_STACKS,
    Answer,
    Order,
    Payload,
    channel_of,
    run_worker,
    send_descriptor,
)
from pipeline.loader.ring.slots import Slot
from pipeline.loader.watch import describe_death

_START_S = 60.0
_REAP_S = 10.0
_TELL_S = 0.2


@dataclass(slots=True)
class Job:
    """A task that was submitted, and the slot that its batch goes to.

    Attributes:
        ticket: Names it.
        task: The task.
        slot: Where the batches go; None as long as no process has it.
        quarantined: Positions of the task that were found to kill.
        others: Tickets and tasks that are computed with it, into the same slot.
    """

    ticket: int
    task: BatchTask
    slot: Slot | None = None
    quarantined: tuple[int, ...] = ()
    others: tuple[tuple[int, BatchTask], ...] = ()

    def apart(self) -> list[Job]:
        """A job for each of its tasks; the first one keeps the slot."""
        others = [Job(ticket, task) for ticket, task in self.others]
        return [replace(self, others=()), *others]


class WorkerProcess:
    """One process and what it is at.

    Args:
        context: The multiprocessing context that says how it starts.
        compute: What it computes with.
        number: Its number among the processes.
        num_processes: Their number.
        num_threads: Tasks that it computes at a time.
        read_ahead: Tasks that it is given beyond those, to read their records.
        timeout_s: Seconds after which a task, or a message cut off in the middle, counts as
            hanging.
        generation: Number of starts that had failed before this one.

    Raises:
        ValueError: The computer does not pickle.
        Exception: Whatever else pickling it raises.
    """

    def __init__(
        self,
        context: Any,
        compute: Callable[[BatchTask], Delivery],
        *,
        number: int,
        num_processes: int,
        num_threads: int,
        read_ahead: int = 0,
        timeout_s: float,
        generation: int = 0,
    ) -> None:
        self.number = number
        self.generation = generation
        self.num_threads = num_threads
        self._read_ahead = read_ahead
        self.is_ready = False
        self.jobs: dict[int, Job] = {}
        self.timed_out = False
        self._timeout_s = timeout_s
        self._deadlines: dict[int, float] = {-1: time.monotonic() + max(_START_S, timeout_s)}
        self._slots: set[int] = set()
        self.connection, theirs = context.Pipe()
        arguments = (Payload(compute), theirs, number, num_processes, num_threads, read_ahead)
        self.process = context.Process(target=run_worker, args=arguments, daemon=True)
        try:
            self.process.start()
        except (TypeError, AttributeError, pickle.PicklingError) as error:
            self.connection.close()
            if "pickle" not in str(error):
                raise
            raise ValueError(
                f"loader: the data set cannot be sent to workers: {error}; use "
                f"loader.multiprocessing_context=fork or loader.processes=0"
            ) from error
        except BaseException:
            self.connection.close()
            raise
        finally:
            theirs.close()
        _limit_waiting(self.connection, timeout_s)

    @property
    def room(self) -> int:
        """Tasks that it can be given; none before the process is ready."""
        return self.num_threads + self._read_ahead - len(self.jobs) if self.is_ready else 0

    @property
    def deadline(self) -> float:
        """When something it is at will count as hanging, in time.monotonic."""
        return min(self._deadlines.values(), default=float("inf"))

    def send(self, job: Job, *, probe: bool = False) -> None:
        """Let it compute a task.

        Args:
            job: The task and its slot.
            probe: Only find out whether it survives.

        Raises:
            OSError: It is dead, or does not read.
        """
        self.jobs[job.ticket] = job
        self._expect()
        order = Order(job.ticket, job.task)
        slot = None if probe else job.slot
        is_new = slot is not None and slot.number not in self._slots
        if slot is not None:
            others = tuple(task for _, task in job.others)
            order = Order(job.ticket, job.task, slot.number, is_new, others)
        self.connection.send_bytes(pickle.dumps(order))
        if slot is not None and is_new:
            send_descriptor(self.connection, slot.fd)
            self._slots.add(slot.number)

    def receive(self) -> tuple[Job, Answer] | None:
        """The next answer and what it answers; None if it only says that it is ready.

        Raises:
            EOFError: It is dead.
            OSError: It is dead, or stopped in the middle of a message.
        """
        answer: Answer = pickle.loads(self.connection.recv_bytes())
        del self._deadlines[answer.ticket]
        if answer.ticket < 0:
            self.is_ready = True
            return None
        job = self.jobs.pop(answer.ticket)
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
        if self.timed_out and self.is_ready and self.process.pid is not None:
            with suppress(ProcessLookupError):
                os.kill(self.process.pid, TELL_STACKS)
            self.process.join(_TELL_S)
        self.connection.close()
        with suppress(ProcessLookupError):
            self.process.kill()
        self.process.join(_REAP_S)

    def describe_end(self) -> str:
        """One line about how it ended."""
        pid = self.process.pid
        if self.timed_out:
            return (
                f"loader: worker process {pid} gave no batch within "
                f"timeout_s={self._timeout_s:g} s and was ended; raise loader.timeout_s if "
                f"reading is that slow; the stacks above say where it was"
            )
        if self.process.exitcode == OUT_OF_MEMORY:
            return (
                f"loader: worker process {pid} got no memory (MemoryError); lower "
                f"loader.num_workers, loader.prefetch_factor or loader.batch_size"
            )
        return describe_death([self.process]) or f"loader: worker process {pid} does not answer"


def _limit_waiting(connection: Connection, timeout_s: float) -> None:
    """Let reads and writes on a connection fail where a stopped process would block them."""
    seconds, rest = divmod(timeout_s, 1)
    limit = struct.pack("ll", int(seconds), int(rest * 1e6))
    with channel_of(connection) as channel:
        channel.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, limit)
        channel.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, limit)
