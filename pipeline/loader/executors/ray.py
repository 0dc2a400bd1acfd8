"""Compute batches in the actors of a Ray cluster."""

from __future__ import annotations

import os
import pickle
import socket
from collections import deque
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
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
from penstock.pipeline.loader.arena import Layout, Packed
from penstock.pipeline.loader.executors.processes import recipe_of
from penstock.pipeline.loader.executors.supervised import Job, SupervisedExecutor, Worker
from penstock.pipeline.loader.worker import (
    Order,
    carry_out,
    tell_torch_datasets,
    use_one_thread,
)
from penstock.pipeline.loader.worker_errors import Failure, WorkerError

if TYPE_CHECKING:
    from concurrent.futures import Future

    from numpy.typing import NDArray

    from penstock.pipeline.loader.compute import BatchComputer
    from penstock.pipeline.loader.settings import LoaderSettings


@register("engine", "ray")
class RayExecutor(SupervisedExecutor):
    """Compute batches in ``num_workers`` actors of a Ray cluster.

    Connect to the cluster of ``RAY_ADDRESS``, or start one that ends with this process. Each actor
    opens the data on its own machine. Batches travel through the object store, without a copy on
    the machine of the consumer. Lost actors are replaced wherever there is room, and their batches
    are computed again. An actor without room joins when there is some.
    """

    lives = 2  # a machine may leave: one death does not blame the batch

    def __init__(self, compute: BatchComputer, settings: LoaderSettings) -> None:
        ray = connected("loader=ray")
        self._settings = settings
        with files_sent() as paths:
            recipe = recipe_of(compute)
        self._recipe = ray.put((recipe, SentFiles.of(paths, "loader=ray")))
        self._computing: set[_ActorWorker] = set()
        super().__init__(compute, settings)

    @classmethod
    def check(cls, compute: BatchComputer, settings: LoaderSettings) -> None:
        """Connect to the cluster, or start one."""
        connected("loader=ray")

    @classmethod
    def describe(cls, settings: LoaderSettings) -> str:
        """Describe the workers, for the log."""
        return f"{settings.workers} actor{'s' * (settings.workers != 1)} of Ray"

    def _start(self, number: int) -> Worker:
        """Request an actor; by default it needs a core when placed, and none while it runs."""
        takes = dict(self._settings.resources or {})
        cores = {"num_cpus": takes.pop("CPU")} if "CPU" in takes else {}
        return _ActorWorker(
            self._recipe,
            {**cores, "resources": takes, "scheduling_strategy": "SPREAD"},
            self._computing,
            number=number,
            num_workers=self._num_workers,
            timeout_s=self._settings.timeout_s,
        )

    def _lease(self, job: Job, answer: Packed) -> Any:
        return None  # the answer has its own arrays


class _ActorWorker(Worker):
    """One actor; while others are ready (`computing`), it may wait for room without a deadline."""

    def __init__(
        self,
        recipe: Any,
        takes: Mapping[str, Any],
        computing: set[_ActorWorker],
        *,
        number: int,
        num_workers: int,
        timeout_s: float,
    ) -> None:
        import ray

        super().__init__(timeout_s)
        self.connection, self._waker = Pipe(duplex=False)
        self.sentinel = self.connection
        self._asked: deque[Future[Any]] = deque()
        self._computing = computing
        self._number = number
        self._where: tuple[str, int] | None = None
        self._cause = ""
        self._actor = ray.remote(_Actor).options(**takes).remote()
        origin = version("penstock"), Surroundings.here()
        self._ask(self._actor.open.remote(recipe, origin, number, num_workers))

    @property
    def pid(self) -> int | None:
        return self._where[1] if self._where else None

    @property
    def deadline(self) -> float:
        if not self.is_ready and self._computing:
            return float("inf")
        return super().deadline

    def send(self, order: Order) -> None:
        self._ask(self._actor.carry_out.remote(order))

    def _ask(self, answer: Any) -> None:
        self._asked.append(answer.future())
        self._asked[-1].add_done_callback(self._arrive)

    def _arrive(self, _: Future[Any]) -> None:
        """Wake the supervising thread; Ray calls this in its own thread."""
        with suppress(OSError):  # the worker has ended
            self._waker.send_bytes(b"")

    def receive(self) -> Packed | Failure | None:
        """Return the answer to the oldest order; None when the actor becomes ready.

        Raise EOFError if it is dead, and WorkerError if it cannot start and no actor is ready.
        """
        import ray

        self.connection.recv_bytes()
        try:
            answered = self._asked.popleft().result()
        except ray.exceptions.RayTaskError as error:
            raise error.cause or WorkerError(in_one_line(error)) from None
        except ray.exceptions.RayError as error:
            why = None if self.is_ready else why_not_begun(error)
            self._cause = why or in_one_line(error)
            if why and not self._computing:  # other machines may succeed
                raise WorkerError(self.ending()) from None
            raise EOFError from None
        if not self.is_ready:
            self._where = answered
            self._computing.add(self)
            return None
        answer: Packed = answered
        return replace(answer, places=[_writable(each) for each in answer.places])

    def end(self) -> None:
        import ray

        self._computing.discard(self)
        with suppress(Exception):  # the cluster may be gone
            ray.kill(self._actor)
        self.connection.close()
        self._waker.close()

    def ending(self) -> str:
        if self._where is None:
            if not self.hangs:
                return f"loader: actor {self._number} could not start: {self._cause}"
            return (
                f"loader: actor {self._number} has not started within "
                f"{start_patience(self._timeout_s):g} s; the cluster has {_resources()}: if it "
                f"is full, lower loader.num_workers or loader.resources, or add machines; if it "
                f"copies data from a URL first, raise loader.timeout_s"
            )
        host, pid = self._where
        if self.hangs:
            return (
                f"loader: actor {pid} on {host} gave no batch within "
                f"timeout_s={self._timeout_s:g} s and was ended; raise loader.timeout_s if "
                f"reading is that slow"
            )
        return f"loader: actor {pid} on {host} ended: {self._cause}"


class _Actor:
    def __init__(self) -> None:
        self._compute: BatchComputer

    def open(
        self,
        sent: tuple[bytes, SentFiles],
        origin: tuple[str, Surroundings],
        number: int,
        num_workers: int,
    ) -> tuple[str, int]:
        """Open the data; return the host and the process id, or raise WorkerError."""
        host, here = socket.gethostname(), version("penstock")
        wanted, surroundings = origin
        if here != wanted:
            raise WorkerError(
                f"loader: {host} has penstock {here}, and the training process {wanted}: install "
                f"the same on every machine of the cluster"
            )
        surroundings.enter()
        try:
            recipe, files = sent
            with files.received():
                self._compute = pickle.loads(recipe).value
        except Exception as error:
            raise WorkerError(f"loader: {why_not_opened(error)}") from None
        use_one_thread()
        tell_torch_datasets(self._compute, number, num_workers)
        return host, os.getpid()

    def carry_out(self, order: Order) -> Packed:
        """Compute an order; Ray stores the arrays of the answer without pickling them."""
        return carry_out(self._compute, order, Layout(None, None))


def _writable(stored: Any) -> Any:
    """Return a writable view of an array in the object store, which no other process reads."""
    return np.asarray(_Writable(stored)) if isinstance(stored, np.ndarray) else stored


class _Writable:
    """Expose an array's memory without its read-only flag."""

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
