"""Batches computed by actors of a Ray cluster, on this machine or on others."""

from __future__ import annotations

import os
import pickle
import queue
import socket
import threading
from collections.abc import Mapping
from contextlib import suppress
from functools import partial
from importlib.metadata import version
from multiprocessing.connection import Pipe
from typing import TYPE_CHECKING, Any

import numpy as np

from penstock.core.machine_cache import files_sent
from penstock.core.processes import start_patience
from penstock.core.ray_cluster import (
    SentFiles,
    Surroundings,
    connected,
    in_one_line,
    why_not_begun,
    why_not_opened,
)
from penstock.core.registry import register
from penstock.pipeline.loader.contract import BatchTask
from penstock.pipeline.loader.engines.pool_engine import PoolEngine
from penstock.pipeline.loader.engines.processes import layout_of_processes
from penstock.pipeline.loader.engines.slots import Slot, SlotPool
from penstock.pipeline.loader.engines.watched_worker import Job, WatchedWorker
from penstock.pipeline.loader.engines.worker import (
    READY,
    Answer,
    Order,
    OrderRunner,
    Payload,
    tell_torch_datasets,
    use_one_thread,
)
from penstock.pipeline.loader.worker_errors import WorkerError

if TYPE_CHECKING:
    from concurrent.futures import Future

    from numpy.typing import NDArray

    from penstock.pipeline.loader.compute import BatchComputer
    from penstock.pipeline.loader.settings import LoaderSettings


@register("engine", "ray")
class RayEngine(PoolEngine):
    """``num_workers`` threads spread over ``processes`` actors of Ray; null: one in each.

    The cluster is the one of ``RAY_ADDRESS``, else one that is started here and ends with this
    process. Each actor opens the data where it is. Batches come through the object store: on the
    machine where they were computed without a copy. Actors that die, with their machine or
    without, are replaced wherever there is room, and what they were at is computed again; those
    that find no room yet take part when they do.

    Args:
        compute: A task to a delivery; sent to the actors.
        settings: Number of workers and actors, what each takes, and how far they compute ahead.

    Raises:
        ValueError: Ray is not installed.
        ExplainedError: The cluster of ``RAY_ADDRESS`` does not answer.
    """

    def __init__(self, compute: BatchComputer, settings: LoaderSettings) -> None:
        super().__init__(compute, settings, layout_of_processes(compute, settings), RayStarter)


class RayStarter:
    """Starts actors.

    Args:
        compute: A task to a delivery; sent to the actors.
        settings: Deadline, and what an actor takes of its machine.
        num_workers: How many there will be.
    """

    lives = 2  # machines come and go: the first death says nothing about a batch
    forks = False

    def __init__(self, compute: BatchComputer, settings: LoaderSettings, num_workers: int) -> None:
        ray = connected("loader=ray")
        self._settings = settings
        self._num_workers = num_workers
        self._takes = dict(settings.resources or {})
        try:
            with files_sent() as paths:
                pickled = pickle.dumps(Payload(compute, compute.imports))
        except (TypeError, AttributeError, pickle.PicklingError) as error:
            raise ValueError(
                f"loader: the data set cannot be sent to actors: {error}; use loader=threads"
            ) from error
        self._payload = ray.put((pickled, SentFiles.of(paths, "loader=ray")))
        self._computing: set[RayWorker] = set()

    @staticmethod
    def prepare(settings: LoaderSettings) -> None:
        """Connect to the cluster, or start one here."""
        connected("loader=ray")

    def slots(self, held: int) -> SlotPool:
        """The object store's own memory."""
        return _StoreSlots(held)

    def start(self, number: int, *, num_threads: int, probes: bool) -> RayWorker:
        """Ask for an actor. One that probes takes nothing, so that there is room for it."""
        takes: dict[str, Any] = {"num_cpus": 0} if probes else self._options()
        return RayWorker(
            self._payload,
            takes,
            set() if probes else self._computing,
            number=number,
            num_workers=self._num_workers,
            num_threads=num_threads,
            timeout_s=self._settings.timeout_s,
        )

    def _options(self) -> dict[str, Any]:
        """What an actor takes; by default a core to be placed, and none to be there.

        The loader of evaluation has actors of its own, on the same cores.
        """
        takes = dict(self._takes)
        cores = {"num_cpus": takes.pop("CPU")} if "CPU" in takes else {}
        return {**cores, "resources": takes, "scheduling_strategy": "SPREAD"}

    def hurry(self) -> None:
        """Nothing is waited for: Ray starts actors by itself."""


class RayWorker(WatchedWorker):
    """One actor.

    Args:
        payload: Reference to the pickled payload in the object store, and the files that it maps.
        takes: Options of the actor.
        computing: The actors of the same loader that are ready: while there are any, one that
            waits for room is not late.
        number: Its number among the actors.
        num_workers: Their number.
        num_threads: Tasks that it computes at a time.
        timeout_s: Seconds after which a task counts as hanging.
    """

    def __init__(
        self,
        payload: Any,
        takes: Mapping[str, Any],
        computing: set[RayWorker],
        *,
        number: int,
        num_workers: int,
        num_threads: int,
        timeout_s: float,
    ) -> None:
        import ray

        super().__init__(number=number, num_threads=num_threads, timeout_s=timeout_s)
        self.connection, self._waker = Pipe(duplex=False)
        self._arrived: queue.SimpleQueue[tuple[int, Future[Any]]] = queue.SimpleQueue()
        self._computing = computing
        self._where: tuple[str, int] | None = None
        self._cause = ""
        self._actor = ray.remote(_Actor).options(max_concurrency=num_threads, **takes).remote()
        origin = version("penstock"), Surroundings.here()
        self._ask(READY, self._actor.open.remote(payload, origin, number, num_workers))

    @property
    def pid(self) -> int | None:
        """Its process id, where it runs."""
        return self._where[1] if self._where else None

    @property
    def deadline(self) -> float:
        """When something it is at will count as hanging, in time.monotonic."""
        if not self.is_ready and self._computing:
            return float("inf")
        return super().deadline

    def send(self, job: Job) -> None:
        """Let it compute a job."""
        assert job.slot is not None
        task, *others = job.tasks
        order = Order(task, job.slot.number, False, tuple(others), job.reports_memory)
        self._order(job, order)

    def probe(self, task: BatchTask) -> None:
        """Let it compute a task only to find out whether it survives."""
        self._order(Job([], 0), Order(task, reports_memory=True))

    def _order(self, job: Job, order: Order) -> None:
        ticket = self._begun(job)
        self._ask(ticket, self._actor.carry_out.remote(order))

    def _ask(self, ticket: int, answer: Any) -> None:
        answer.future().add_done_callback(partial(self._arrive, ticket))

    def _arrive(self, ticket: int, future: Future[Any]) -> None:
        """Wake the watch; called by a thread of Ray's."""
        self._arrived.put((ticket, future))
        with suppress(OSError):  # ended meanwhile
            self._waker.send_bytes(b"")

    def receive(self) -> tuple[Job, Answer] | None:
        """The next answer and what it answers; None if it only says that it is ready.

        Raises:
            EOFError: It is dead.
            WorkerError: It cannot open the data, or begin at all, and there are no others.
        """
        import ray

        self.connection.recv_bytes()
        ticket, future = self._arrived.get()
        try:
            answered = future.result()
        except ray.exceptions.RayTaskError as error:
            raise error.cause or WorkerError(in_one_line(error)) from None
        except ray.exceptions.RayError as error:
            why = None if self.is_ready else why_not_begun(error)
            self._cause = why or in_one_line(error)
            if why and not self._computing:  # elsewhere it may
                raise WorkerError(self.describe_end()) from None
            raise EOFError from None
        if ticket == READY:
            self._where = answered
            self._computing.add(self)
            return self._answered(READY, Answer())
        answer, memory = answered
        slot = self.jobs[ticket].slot
        if isinstance(slot, _StoreSlot):
            slot.stored = memory
        return self._answered(ticket, answer)

    def end(self) -> None:
        """Kill it, if it still runs."""
        import ray

        self._computing.discard(self)
        with suppress(Exception):  # the cluster may be gone
            ray.kill(self._actor)
        self.connection.close()
        self._waker.close()

    def describe_end(self) -> str:
        """One line about how it ended."""
        if self._where is None:
            if not self.timed_out:
                return f"loader: actor {self.number} could not start: {self._cause}"
            return (
                f"loader: actor {self.number} has not started within "
                f"{start_patience(self._timeout_s):g} s; the cluster has {_resources()}: if there "
                f"is no room, lower loader.processes or loader.resources, or add machines; if it "
                f"copies data from a URL first, raise loader.timeout_s"
            )
        host, pid = self._where
        if self.timed_out:
            return (
                f"loader: actor {pid} on {host} gave no batch within "
                f"timeout_s={self._timeout_s:g} s and was ended; raise loader.timeout_s if "
                f"reading is that slow"
            )
        return f"loader: actor {pid} on {host} ended: {self._cause}"


class _Actor:
    """Compute batches in an actor's process, in as many threads as Ray runs methods at a time."""

    def __init__(self) -> None:
        self._own = threading.local()
        self._runner: OrderRunner

    def open(
        self,
        payload: tuple[bytes, SentFiles],
        origin: tuple[str, Surroundings],
        number: int,
        num_workers: int,
    ) -> tuple[str, int]:
        """Open the data; give the host and the process id.

        Raises:
            WorkerError: It does not open here.
        """
        host, here = socket.gethostname(), version("penstock")
        wanted, surroundings = origin
        if here != wanted:
            raise WorkerError(
                f"loader: {host} has penstock {here}, and the training process {wanted}: install "
                f"the same on every machine of the cluster"
            )
        use_one_thread()
        surroundings.enter()
        try:
            pickled, files = payload
            with files.received():
                opened = pickle.loads(pickled)
        except Exception as error:
            raise WorkerError(f"loader: {why_not_opened(error)}") from None
        tell_torch_datasets(opened, number, num_workers)
        self._runner = OrderRunner(opened.value)
        return host, os.getpid()

    def carry_out(self, order: Order) -> tuple[Answer, NDArray[np.uint8] | None]:
        """Compute an order; the answer, and the memory that its batches lie in."""
        if order.slot is None:
            return self._runner.run(order, None), None
        # This thread has given back the batch before when Ray calls it again.
        slot = self._own.__dict__.setdefault("slot", _HeapSlot())
        answer = self._runner.run(order, slot)
        packed = answer.packed
        size_bytes = packed.size_bytes if packed is not None else 0
        return answer, slot.memory(size_bytes) if size_bytes else None


class _HeapSlot(Slot):
    """Ordinary memory, which is copied to the object store when it is given back."""

    def __init__(self) -> None:
        super().__init__(0, fd=-1)
        self._array = np.empty(0, np.uint8)

    def memory(self, size_bytes: int) -> NDArray[np.uint8]:
        """Memory, uint8 [size_bytes], with what was written to it before."""
        if self._array.size < size_bytes:
            grown = np.empty(size_bytes + size_bytes // 8, np.uint8)
            grown[: self._array.size] = self._array
            self._array = grown
        return self._array[:size_bytes]


class _StoreSlot(Slot):
    """What an actor gave, where it lies in the object store.

    Attributes:
        stored: The memory; None as long as there is nothing.
    """

    def __init__(self, number: int) -> None:
        super().__init__(number, fd=-1)
        self.stored: NDArray[np.uint8] | None = None

    def memory(self, size_bytes: int) -> NDArray[np.uint8]:
        """The memory, uint8 [size_bytes], writable: nobody else has the object."""
        assert self.stored is not None
        return np.asarray(_Writable(self.stored))[:size_bytes]


class _StoreSlots(SlotPool):
    """Slots of the object store; nothing is used again."""

    def _new(self, number: int) -> Slot:
        return _StoreSlot(number)

    def give_back(self, slot: Slot) -> None:
        """Forget what it holds, for Ray to free."""


class _Writable:
    """An array's memory without its flag that forbids to write."""

    def __init__(self, array: NDArray[np.uint8]) -> None:
        self._array = array
        self.__array_interface__ = {
            **array.__array_interface__,
            "data": (array.ctypes.data, False),
        }


def _resources() -> str:
    import ray

    return ", ".join(
        f"{name} {amount:g}"
        for name, amount in sorted(ray.cluster_resources().items())
        if not name.startswith(("node:", "memory", "object_store"))
    )
