"""Batches computed in this process, one at a time: for debugging."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from penstock.core.registry import register
from penstock.pipeline.loader.contract import BatchTask, Delivery, Executor, Future
from penstock.pipeline.loader.memory import BatchMemory

if TYPE_CHECKING:
    from penstock.pipeline.loader.compute import BatchComputer
    from penstock.pipeline.loader.device.accelerator import PageLock
    from penstock.pipeline.loader.settings import LoaderSettings


@register("engine", "inline")
class InlineExecutor(Executor):
    """Computes every batch in this process and thread."""

    def __init__(self, compute: BatchComputer, settings: LoaderSettings) -> None:
        self._compute = compute
        self._memory = BatchMemory()

    @classmethod
    def describe(cls, settings: LoaderSettings) -> str:
        """Say who computes."""
        return "the consumer's own thread"

    def page_lock(self, lock: PageLock) -> None:
        """Compute batches in page-locked memory."""
        self._memory.page_lock(lock)

    def submit(self, tasks: Sequence[BatchTask], *, probes: bool = False) -> Future:
        """Put a task off until the scheduler takes its delivery."""
        return _Put(self, tasks[0])

    def delivery(self, task: BatchTask) -> Delivery:
        """Compute a task."""
        return self._compute(task, allocate=self._memory.allocate)

    def drop(self) -> None:
        """Give back memory that is free."""
        self._memory.release()

    def close(self) -> None:
        """Give back memory that is free."""
        self._memory.release()


class _Put(Future):
    """A task that is computed when the scheduler takes its result."""

    __slots__ = ("_executor", "_task")

    def __init__(self, executor: InlineExecutor, task: BatchTask) -> None:
        super().__init__()
        self._executor = executor
        self._task = task

    def result(self, timeout_s: float | None = None) -> Sequence[Delivery | BaseException]:
        """Compute the task."""
        return [self._executor.delivery(self._task)]
