"""Batches computed in this process, one at a time: for debugging."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from penstock.core.registry import register
from penstock.pipeline.loader.contract import BatchTask, Delivery, Executor, Future
from penstock.pipeline.loader.memory import pins

if TYPE_CHECKING:
    from penstock.pipeline.loader.compute import BatchComputer
    from penstock.pipeline.loader.settings import LoaderSettings


@register("engine", "inline")
class InlineExecutor(Executor):
    """Computes every batch in this process and thread."""

    def __init__(self, compute: BatchComputer, settings: LoaderSettings) -> None:
        self._compute = compute
        self._pins = pins(settings)

    @classmethod
    def describe(cls, settings: LoaderSettings) -> str:
        """Say who computes."""
        return "the consumer's own thread"

    def submit(self, tasks: Sequence[BatchTask], *, probes: bool = False) -> Future:
        """Put a task off until the scheduler takes its delivery."""
        return _Put(self, tasks[0])

    def delivery(self, task: BatchTask) -> Delivery:
        """Compute a task."""
        delivery = self._compute(task)
        return delivery.pin_memory() if self._pins else delivery

    def close(self) -> None:
        """Nothing has to be ended."""


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
