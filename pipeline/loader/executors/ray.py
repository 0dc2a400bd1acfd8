"""Compute batches on the machines of a Ray cluster."""

from __future__ import annotations

import faulthandler
import logging
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING

from penstock.core.processes import start_patience
from penstock.core.ray_cluster import RayCalls
from penstock.core.registry import register
from penstock.core.user_errors import ExplainedError
from penstock.pipeline.loader.arena import Layout, Packed, unpack
from penstock.pipeline.loader.contract import BatchTask, Delivery, Executor, Future, WorkerDiedError
from penstock.pipeline.loader.executors.processes import recipe_of
from penstock.pipeline.loader.worker import Payload, carry_out
from penstock.pipeline.loader.worker_errors import Failure, LoaderClosedError, WorkerError

if TYPE_CHECKING:
    from penstock.pipeline.loader.compute import BatchComputer
    from penstock.pipeline.loader.settings import LoaderSettings

_logger = logging.getLogger(__name__)


@register("engine", "ray")
class RayExecutor(Executor):
    """Compute batches as tasks of a Ray cluster, which places them wherever there is room.

    Connect to the cluster of ``RAY_ADDRESS``, or start one that ends with this process. Each
    process opens the data on its own machine. Lost batches are computed again.
    """

    bundles = True
    times_out = True

    def __init__(self, compute: BatchComputer, settings: LoaderSettings) -> None:
        takes = settings.resources or {}
        self.calls = RayCalls(_compute, partial(recipe_of, compute), takes)
        self.timeout_s = settings.timeout_s
        self.depth = settings.workers * settings.prefetch_factor
        self.asked: set[_Asked] = set()

    def submit(self, tasks: Sequence[BatchTask]) -> Future:
        """Begin tasks wherever there is room."""
        asked = _Asked(self, tasks)
        self.asked.add(asked)
        return asked

    def drop(self) -> None:
        """Let the cluster free the batches that no one will take."""
        self.asked.clear()

    def close(self) -> None:
        """Cancel all tasks."""
        asked, self.asked = self.asked, set()
        for each in asked:
            self.calls.end(each.answer)


class _Asked(Future):
    """Tasks that are computed on the cluster."""

    __slots__ = ("_executor", "_limit_s", "answer")

    def __init__(self, executor: RayExecutor, tasks: Sequence[BatchTask]) -> None:
        super().__init__()
        self._executor = executor
        self._limit_s = tasks[0].limit_s(executor.timeout_s)
        self.answer = executor.calls.begin(tasks, self._limit_s)

    @property
    def is_done(self) -> bool:
        return bool(self._executor.calls.ray.wait([self.answer], timeout=0)[0])

    def result(self, timeout_s: float | None = None) -> Sequence[Delivery | BaseException]:
        executor, ray = self._executor, self._executor.calls.ray
        if not ray.wait([self.answer], timeout=self._limit_s + start_patience(self._limit_s))[0]:
            raise WorkerError(
                f"loader: no batch from the cluster, which has {ray.cluster_resources()}; if it "
                f"is full, lower loader.num_workers or loader.resources, or add machines; if it "
                f"copies data from a URL first, raise loader.timeout_s={executor.timeout_s:g}"
            )
        try:
            packed: Packed = ray.get(self.answer)
        except Exception as error:
            raise self._told(error) from None
        finally:
            executor.asked.discard(self)
        return [x.exception() if isinstance(x, Failure) else x for x in unpack(packed, None)]

    def _told(self, error: Exception) -> Exception:
        executor = self._executor
        if self not in executor.asked:
            return LoaderClosedError()
        try:
            how = executor.calls.why_ended(error)
        except ExplainedError as explained:
            return WorkerError(f"loader: {explained}")
        if how is None:
            return error
        executor.restarts += 1
        death = WorkerDiedError(
            f"loader: a process of the cluster ended, or gave no batch within "
            f"loader.timeout_s={executor.timeout_s:g}: {how}",
            WorkerError,
        )
        _logger.warning("%s; its batches are computed again", death)
        return death


def _compute(payload: Payload, tasks: Sequence[BatchTask], timeout_s: float) -> Packed:
    """Compute tasks; end this process when they take longer than `timeout_s`."""
    faulthandler.dump_traceback_later(timeout_s, exit=True, file=2)
    try:
        return carry_out(payload.value, tasks, Layout(None, None))
    finally:
        faulthandler.cancel_dump_traceback_later()
