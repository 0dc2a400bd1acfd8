"""A custom executor over a thread pool of the standard library: docs/architecture.md."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from penstock import register
from penstock.pipeline.loader.compute import BatchComputer
from penstock.pipeline.loader.contract import BatchTask, Executor, Future


@register("engine", "executor")
class PoolExecutor(Executor):
    """``num_workers`` threads of a `ThreadPoolExecutor`; a hanging thread blocks the exit."""

    def __init__(self, compute: BatchComputer, settings: Any) -> None:
        if compute.global_random:
            raise ValueError("a component draws from global states; type loader=processes")
        self._compute = compute
        self.depth = settings.workers * settings.prefetch_factor
        self._pool = ThreadPoolExecutor(settings.workers)

    def submit(self, tasks: Sequence[BatchTask]) -> Future:
        """Compute tasks in a thread."""
        future = Future()
        self._pool.submit(self._work, future, tasks)
        return future

    def close(self) -> None:
        """End the threads."""
        self._pool.shutdown(wait=False, cancel_futures=True)

    def _work(self, future: Future, tasks: Sequence[BatchTask]) -> None:
        future.set(self._compute.several(tasks))
