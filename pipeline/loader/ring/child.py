"""The worker process: threads that compute tasks and write the batches into slots."""

from __future__ import annotations

import ctypes
import errno
import faulthandler
import multiprocessing
import os
import pickle
import queue
import signal
import socket
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from multiprocessing import forkserver
from typing import TYPE_CHECKING, Any, cast

from pipeline.loader.contract import BatchTask, Delivery
from pipeline.loader.read_ahead import ReadAhead
from pipeline.loader.ring.packing import Parcel
from pipeline.loader.ring.slots import Slot, address_of
from pipeline.loader.worker import ComponentImports, Failure, use_one_thread
from pipeline.loader.worker_context import leave_signals_to_main

if TYPE_CHECKING:
    from multiprocessing.connection import Connection

OUT_OF_MEMORY = errno.ENOMEM
"""Exit code of a process in which memory could not be had."""

TELL_STACKS = signal.SIGUSR1
"""Makes a worker process write the stacks of its threads to stderr."""

_PR_SET_PDEATHSIG = 1


@dataclass(frozen=True, slots=True)
class Order:
    """What a worker process is told to do.

    Attributes:
        ticket: Names the order in the answer.
        task: What to compute.
        slot: Number of the slot to write to; None where only surviving matters.
        has_descriptor: Whether the slot's descriptor follows: this process has not seen it yet.
        others: What to compute with it, into the same slot.
    """

    ticket: int
    task: BatchTask
    slot: int | None = None
    has_descriptor: bool = False
    others: tuple[BatchTask, ...] = ()


@dataclass(frozen=True, slots=True)
class Answer:
    """What a worker process gives back.

    Attributes:
        ticket: That of the order; -1 says that the process is ready.
        size_bytes: Bytes of the slot that are used.
        body: Pickled deliveries, their tensors in the slot, up to the first failure if any.
        row_bytes: What a row takes of batches that can be computed together; 0 of others.
    """

    ticket: int
    size_bytes: int = 0
    body: bytes = b""
    row_bytes: int = 0


class Payload:
    """The computer on its way to a process: components are registered before it arrives."""

    def __init__(self, compute: Callable[[BatchTask], Delivery]) -> None:
        self.compute = compute

    def __reduce__(self) -> tuple[Any, ...]:
        imports = tuple(getattr(self.compute, "imports", ()))
        return _restore, (ComponentImports(imports), self.compute)


def _restore(_: None, compute: Callable[[BatchTask], Delivery]) -> Payload:
    return Payload(compute)


def run_worker(
    payload: Payload,
    connection: Connection,
    number: int,
    num_processes: int,
    num_threads: int,
    read_ahead: int,
) -> None:
    """Compute until the connection ends, which it does with the consumer's process.

    Args:
        payload: What computes.
        connection: Orders come and answers go over it.
        number: This worker among the processes.
        num_processes: Their number.
        num_threads: Threads that compute here.
        read_ahead: Orders that come before a thread is free for them.
    """
    leave_signals_to_main()
    _end_with_parent()
    # The descriptor and not sys.stderr, which a notebook replaces by what has none.
    faulthandler.register(TELL_STACKS, file=2)
    use_one_thread()
    _tell_torch_datasets(payload, number, num_processes)
    worker = _Worker(payload.compute, connection, read_ahead)
    for thread in range(num_threads):
        threading.Thread(target=worker.work, name=f"worker-{thread}", daemon=True).start()
    try:
        worker.answer(Answer(-1))
        while True:
            worker.accept(pickle.loads(connection.recv_bytes()))
    except (EOFError, OSError):
        # Without any tearing down: threads are in the middle of a batch that nobody wants.
        os._exit(0)


class _Worker:
    """The threads of a worker process: what they share."""

    def __init__(self, compute: Any, connection: Connection, read_ahead: int) -> None:
        self._compute = compute
        self._reader = ReadAhead(compute.read, read_ahead) if read_ahead else None
        self._connection = connection
        self._sending = threading.Lock()
        self._orders: queue.SimpleQueue[tuple[Order, Slot | None]] = queue.SimpleQueue()
        self._slots: dict[int, Slot] = {}

    def accept(self, order: Order) -> None:
        """Give an order to the next thread that is idle."""
        slot = None
        if order.slot is not None:
            if order.has_descriptor:
                fd = _receive_descriptor(self._connection)
                self._slots[order.slot] = Slot(order.slot, fd=fd)
            slot = self._slots[order.slot]
            if self._reader is not None:
                self._reader.begin(order.ticket, order.task)
        self._orders.put((order, slot))

    def work(self) -> None:
        """Carry orders out, for ever."""
        while True:
            order, slot = self._orders.get()
            try:
                answer = self._carry_out(order, slot)
            except MemoryError:
                _die_out_of_memory()
            try:
                self.answer(answer)
            except OSError:
                os._exit(0)  # nobody is there any more

    def answer(self, answer: Answer) -> None:
        """Send an answer."""
        data = pickle.dumps(answer)
        with self._sending:
            self._connection.send_bytes(data)

    def _carry_out(self, order: Order, slot: Slot | None) -> Answer:
        try:
            given = {} if self._reader is None else self._reader.take(order.ticket)
            if slot is None:
                self._compute(order.task, **given)
                return Answer(order.ticket)
            place = _Place(slot)
            if order.others:
                outcomes = self._several((order.task, *order.others), place)
            else:
                outcomes = [self._compute(order.task, allocate=place.allocate, **given)]
            batches = [each.batch for each in outcomes if isinstance(each, Delivery)]
            parcel = Parcel(batches, address=place.address, filled_bytes=place.size_bytes)
            if parcel.size_bytes:
                parcel.write(slot.memory(parcel.size_bytes))
            packed = iter(parcel.packed)
            body = pickle.dumps(
                [
                    replace(each, batch=next(packed)) if isinstance(each, Delivery) else each
                    for each in outcomes
                ]
            )
            row_bytes = getattr(self._compute, "row_bytes", 0)
            return Answer(order.ticket, parcel.size_bytes, body, row_bytes)
        except MemoryError:
            raise
        except BaseException as error:
            return Answer(order.ticket, 0, pickle.dumps([Failure.of(error)]))

    def _several(self, tasks: tuple[BatchTask, ...], place: _Place) -> list[Delivery | Failure]:
        """Deliveries of several tasks, up to the first that fails."""
        with suppress(BaseException):  # alone, each fails by what is wrong with it
            if together := self._compute.together(tasks, allocate=place.allocate):
                return cast("list[Delivery | Failure]", together)
        place.size_bytes = 0
        outcomes: list[Delivery | Failure] = []
        for task in tasks:
            try:
                outcomes.append(self._compute(task))
            except MemoryError:
                raise
            except BaseException as error:
                return [*outcomes, Failure.of(error)]
        return outcomes


class _Place:
    """Where a computer may put a batch's images: the beginning of a slot."""

    def __init__(self, slot: Slot) -> None:
        self._slot = slot
        self.address = 0
        self.size_bytes = 0

    def allocate(self, size_bytes: int) -> Any:
        """The slot's memory."""
        assert not self.size_bytes, "one buffer for a batch"
        memory = self._slot.memory(size_bytes)
        self.address, self.size_bytes = address_of(memory), size_bytes
        return memory


def send_descriptor(connection: Connection, fd: int) -> None:
    """Send a descriptor after an order."""
    with channel_of(connection) as channel:
        socket.send_fds(channel, [b"f"], [fd])


def channel_of(connection: Connection) -> socket.socket:
    """A socket of a duplicated descriptor; the connection behind both is the same."""
    channel = socket.socket(fileno=os.dup(connection.fileno()))
    # A program's socket.setdefaulttimeout must not make the connection non-blocking.
    channel.setblocking(True)
    return channel


def _receive_descriptor(connection: Connection) -> int:
    with channel_of(connection) as channel:
        _, fds, _, _ = socket.recv_fds(channel, 1, 1)
    if not fds:
        raise EOFError
    return fds[0]


def _end_with_parent() -> None:
    """Let the system kill this process when its parent is gone, even in the middle of a call.

    A parent that was gone before is found here, unless it is a server, which is watched by the
    main process: a forked process has a copy of the connection's other end, and would wait.
    """
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    parent = multiprocessing.parent_process()
    has_server = forkserver.get_inherited_fds() is not None
    if parent is not None and not has_server and os.getppid() != parent.pid:
        os._exit(0)


def _die_out_of_memory() -> None:
    """End: a process that got no memory is no place to go on in."""
    os.write(2, b"loader: MemoryError in a worker process\n")
    os._exit(OUT_OF_MEMORY)


def _tell_torch_datasets(payload: Payload, number: int, num_processes: int) -> None:
    """Let ``torch.utils.data.get_worker_info`` answer as in torch's own workers."""
    from torch.utils.data._utils import worker

    worker._worker_info = worker.WorkerInfo(
        id=number, num_workers=num_processes, seed=0, dataset=cast("Any", payload)
    )
