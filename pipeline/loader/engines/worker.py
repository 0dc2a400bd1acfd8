"""The worker process: threads that compute tasks and write the batches into slots."""

from __future__ import annotations

import errno
import faulthandler
import os
import pickle
import queue
import signal
import threading
from contextlib import suppress
from dataclasses import dataclass, replace
from multiprocessing.reduction import ForkingPickler
from typing import TYPE_CHECKING, Any, Generic, NoReturn, TypeVar, cast

from penstock.core.processes import end_with_parent, leave_signals_to_parent, receive_descriptor
from penstock.core.stage_times import counted
from penstock.pipeline.loader.contract import BatchTask, Delivery
from penstock.pipeline.loader.engines.batch_memory import keep_freed_memory
from penstock.pipeline.loader.engines.slots import Packed, Slot, pack
from penstock.pipeline.loader.worker_errors import Failure

if TYPE_CHECKING:
    from multiprocessing.connection import Connection

    import numpy as np
    from numpy.typing import NDArray

    from penstock.pipeline.loader.compute import BatchComputer
    from penstock.pipeline.loader.placement import Placement

T = TypeVar("T")

PRELOADED = (
    "penstock.pipeline.loader.engines.worker",
    "penstock.pipeline.loader.leaves",
    "numpy",
    "torch",
    "torch.utils.data",
    "cv2",
    "simplejpeg",
)
"""Modules that a fork server imports, so that its workers need not."""

OUT_OF_MEMORY = errno.ENOMEM
"""Exit code of a process in which memory could not be had."""

TELL_STACKS = signal.SIGUSR1
"""Makes a worker process write the stacks of its threads to stderr."""


READY = -1
"""The ticket of the first answer, which says that the process is ready."""


@dataclass(frozen=True, slots=True)
class Order:
    """An order to a worker process.

    Attributes:
        task: What to compute.
        slot: Number of the slot to write to; None where only surviving matters.
        has_descriptor: Whether the slot's descriptor follows: this process has not seen it yet.
        others: What to compute with it, into the same slot.
        reports_memory: Answer with a MemoryError instead of ending the process by it.
    """

    task: BatchTask
    slot: int | None = None
    has_descriptor: bool = False
    others: tuple[BatchTask, ...] = ()
    reports_memory: bool = False


@dataclass(frozen=True, slots=True)
class Answer:
    """An answer of a worker process.

    Attributes:
        packed: Deliveries, their tensors in the slot, up to the first failure if any; None where
            only surviving mattered.
        row_bytes: What a row takes of batches that can be computed together; 0 of others.
    """

    packed: Packed | None = None
    row_bytes: int = 0


class Payload(Generic[T]):
    """A value for a process, which registers components and sets its retries before it unpickles.

    Args:
        value: What computes or reads there.
        imports: Modules of the user's components.
    """

    def __init__(self, value: T, imports: tuple[str, ...]) -> None:
        self.value = value
        self._imports = imports

    def __reduce__(self) -> tuple[Any, ...]:
        from penstock.datasets.files.clients import get_retry_s

        return _unpickled, (self._imports, get_retry_s(), bytes(ForkingPickler.dumps(self.value)))


def _unpickled(imports: tuple[str, ...], retry_s: float, pickled: bytes) -> Payload[Any]:
    from penstock.datasets.files.clients import set_retry_s
    from penstock.pipeline.config.components import register_components

    set_retry_s(retry_s)
    os.environ.setdefault("NO_ALBUMENTATIONS_UPDATE", "1")
    register_components(imports)
    return Payload(pickle.loads(pickled), imports)


def use_one_thread() -> None:
    """Keep libraries from starting threads of their own in this process."""
    import torch

    torch.set_num_threads(1)
    quiet_opencv()
    keep_freed_memory()


def quiet_opencv() -> None:
    """Let OpenCV compute in the thread that calls it; it gives the same pixels."""
    try:
        import cv2
    except ImportError:
        return
    cv2.setNumThreads(0)


def run_worker(
    connection: Connection,
    payload: Payload[BatchComputer],
    number: int,
    num_processes: int,
    num_threads: int,
    placement: Placement,
) -> None:
    """Compute until the connection ends, which it does with the consumer's process.

    Args:
        connection: Orders come and answers go over it.
        payload: What computes.
        number: This worker among the processes.
        num_processes: Their number.
        num_threads: Threads that compute here.
        placement: Where its threads run.
    """
    placement.enter_process()  # before there are more threads, which inherit it
    leave_signals_to_parent()
    end_with_parent(starter_stays=True)
    # The descriptor and not sys.stderr, which a notebook replaces by what has none.
    faulthandler.register(TELL_STACKS, file=2)
    use_one_thread()
    tell_torch_datasets(payload, number, num_processes)
    worker = _Worker(OrderRunner(payload.value), connection)
    for thread in range(num_threads):
        threading.Thread(target=worker.work, name=f"worker-{thread}", daemon=True).start()
    try:
        worker.answer(READY, Answer())
        while True:
            worker.accept(*pickle.loads(connection.recv_bytes()))
    except (EOFError, OSError):
        # Without any tearing down: threads are in the middle of a batch that nobody wants.
        os._exit(0)


class _Worker:
    """The threads of a worker process: what they share."""

    def __init__(self, runner: OrderRunner, connection: Connection) -> None:
        self._runner = runner
        self._connection = connection
        self._sending = threading.Lock()
        self._orders: queue.SimpleQueue[tuple[int, Order, Slot | None]] = queue.SimpleQueue()
        self._slots: dict[int, Slot] = {}

    def accept(self, ticket: int, order: Order) -> None:
        """Give an order to the next thread that is idle; the ticket names it in the answer."""
        slot = None
        if order.slot is not None:
            if order.has_descriptor:
                fd = receive_descriptor(self._connection)
                if (replaced := self._slots.get(order.slot)) is not None:
                    replaced.close()
                self._slots[order.slot] = Slot(order.slot, fd=fd)
            slot = self._slots[order.slot]
        self._orders.put((ticket, order, slot))

    def work(self) -> None:
        """Carry orders out, for ever."""
        while True:
            ticket, order, slot = self._orders.get()
            answer = self._runner.run(order, slot)
            try:
                self.answer(ticket, answer)
            except OSError:
                os._exit(0)  # nobody is there any more

    def answer(self, ticket: int, answer: Answer) -> None:
        """Send an answer."""
        data = pickle.dumps((ticket, answer))
        with self._sending:
            self._connection.send_bytes(data)


class OrderRunner:
    """Carries orders out, in any thread, wherever it is.

    Args:
        compute: What computes.
    """

    def __init__(self, compute: BatchComputer) -> None:
        self._compute = compute

    def run(self, order: Order, slot: Slot | None) -> Answer:
        """Carry out an order and write its batches to `slot`, if one is given.

        A MemoryError ends the process unless the order says to report it.
        """
        try:
            return self._carry_out(order, slot)
        except MemoryError as error:
            if order.reports_memory:
                return _failed(error)
            _die_out_of_memory()

    def _carry_out(self, order: Order, slot: Slot | None) -> Answer:
        try:
            if slot is None:
                self._compute(order.task)
                return Answer()
            place = _Place(slot)
            if order.others:
                outcomes = self._several((order.task, *order.others), place)
            else:
                outcomes = [self._compute(order.task, allocate=place.allocate)]
            packed = pack(outcomes, slot, filled=place.filled)
            return Answer(packed, self._compute.row_bytes)
        except MemoryError:
            raise
        except BaseException as error:
            return _failed(error)

    def _several(self, tasks: tuple[BatchTask, ...], place: _Place) -> list[Delivery | Failure]:
        """Deliveries of several tasks, up to the first that fails."""
        with counted() as asked, suppress(BaseException):  # alone, each fails by what is wrong
            if together := self._compute.together(tasks, allocate=place.allocate):
                return cast("list[Delivery | Failure]", together)
        place.filled = None
        tasks = (replace(tasks[0], asked=asked), *tasks[1:])  # what was read in vain counts, too
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
    """The beginning of a slot, where a computer may put a batch's images."""

    def __init__(self, slot: Slot) -> None:
        self._slot = slot
        self.filled: NDArray[np.uint8] | None = None

    def allocate(self, size_bytes: int) -> NDArray[np.uint8]:
        """Return the slot's memory; a second call takes it back from the first.

        A batch whose columns turn out to be damaged is made again, sample by sample.
        """
        self.filled = self._slot.memory(size_bytes)
        return self.filled


def _failed(error: BaseException) -> Answer:
    return Answer(Packed(pickle.dumps([Failure.of(error)]), [], 0))


def _die_out_of_memory() -> NoReturn:
    """End this process: after a MemoryError its state cannot be trusted."""
    os.write(2, b"loader: MemoryError in a worker process\n")
    os._exit(OUT_OF_MEMORY)


def tell_torch_datasets(payload: Payload[BatchComputer], number: int, num_processes: int) -> None:
    """Let ``torch.utils.data.get_worker_info`` answer as in torch's own workers."""
    from torch.utils.data._utils import worker

    worker._worker_info = worker.WorkerInfo(
        id=number, num_workers=num_processes, seed=0, dataset=cast("Any", payload)
    )
