"""Batches computed by actors of a Ray cluster, on this machine or on others."""

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
    """``num_workers`` actors of a Ray cluster.

    The cluster is the one of ``RAY_ADDRESS``, else one that is started here and ends with this
    process. Each actor opens the data where it is. Batches come through the object store: on the
    machine where they were computed without a copy. Actors that die, with their machine or
    without, are replaced wherever there is room, and their batches are computed again; an actor
    that finds no room yet takes part when it does.

    Raises:
        ValueError: Ray is not installed, or the data set cannot be sent to actors.
        ExplainedError: The cluster of ``RAY_ADDRESS`` does not answer.
    """

    lives = 2  # machines come and go: the first death says nothing about a batch

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
        """Connect to the cluster, or start one here."""
        connected("loader=ray")

    @classmethod
    def describe(cls, settings: LoaderSettings) -> str:
        """Say who computes."""
        return f"{settings.workers} actor{'s' * (settings.workers != 1)} of Ray"

    def _start(self, number: int) -> Worker:
        """Ask for an actor, which by default needs a core to be placed, and none to be there.

        The loader of evaluation has actors of its own, on the same cores.
        """
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
        return None  # the arrays are in the answer


class _ActorWorker(Worker):
    """One actor.

    Args:
        recipe: Reference to the pickled recipe in the object store, and the files that it maps.
        takes: Options of the actor.
        computing: The actors of the same loader that are ready: while there are any, one that
            waits for room is not late.
        number: Its number among the actors.
        num_workers: Their number.
        timeout_s: Seconds after which a job counts as hanging.
    """

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
        """Its process id, where it runs."""
        return self._where[1] if self._where else None

    @property
    def deadline(self) -> float:
        """When it will count as hanging, in time.monotonic."""
        if not self.is_ready and self._computing:
            return float("inf")
        return super().deadline

    def send(self, order: Order) -> None:
        """Send an order."""
        self._ask(self._actor.carry_out.remote(order))

    def _ask(self, answer: Any) -> None:
        self._asked.append(answer.future())
        self._asked[-1].add_done_callback(self._arrive)

    def _arrive(self, _: Future[Any]) -> None:
        """Wake the supervising thread; called by a thread of Ray's."""
        with suppress(OSError):  # ended meanwhile
            self._waker.send_bytes(b"")

    def receive(self) -> Packed | Failure | None:
        """Receive the answer to its first job; None if it is ready.

        Raises:
            EOFError: It is dead.
            WorkerError: It cannot open the data, or begin at all, and it is alone.
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
            if why and not self._computing:  # elsewhere it may
                raise WorkerError(self.ending()) from None
            raise EOFError from None
        if not self.is_ready:
            self._where = answered
            self._computing.add(self)
            return None
        answer: Packed = answered
        return replace(answer, places=[_writable(each) for each in answer.places])

    def end(self) -> None:
        """Kill it, if it still runs."""
        import ray

        self._computing.discard(self)
        with suppress(Exception):  # the cluster may be gone
            ray.kill(self._actor)
        self.connection.close()
        self._waker.close()

    def ending(self) -> str:
        """Say in one line how it ended."""
        if self._where is None:
            if not self.hangs:
                return f"loader: actor {self._number} could not start: {self._cause}"
            return (
                f"loader: actor {self._number} has not started within "
                f"{start_patience(self._timeout_s):g} s; the cluster has {_resources()}: if there "
                f"is no room, lower loader.num_workers or loader.resources, or add machines; if it "
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
    """Compute batches in an actor's process."""

    def __init__(self) -> None:
        self._compute: BatchComputer

    def open(
        self,
        sent: tuple[bytes, SentFiles],
        origin: tuple[str, Surroundings],
        number: int,
        num_workers: int,
    ) -> tuple[str, int]:
        """Open the data; return the host and the process id.

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
        """Compute an order; arrays of the answer go to the object store as they are."""
        return carry_out(self._compute, order, Layout(None, None))


def _writable(stored: Any) -> Any:
    """The memory of an array in the object store, which no other process has, to be written to."""
    return np.asarray(_Writable(stored)) if isinstance(stored, np.ndarray) else stored


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
