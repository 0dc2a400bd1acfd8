"""An engine of one's own, over a pool of the standard library: docs/architecture.md."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

from penstock import register
from penstock.pipeline.loader.compute import BatchComputer
from penstock.pipeline.loader.contract import BatchTask, Delivery
from penstock.pipeline.loader.engines.batch_memory import pins
from penstock.pipeline.loader.worker_errors import LoaderTimeoutError


@register("engine", "executor")
class ExecutorEngine:
    """``num_workers`` threads of a `ThreadPoolExecutor`; one that hangs holds the program's end."""

    def __init__(self, compute: BatchComputer, settings: Any) -> None:
        if compute.global_random:
            raise ValueError("a component draws from global states; type loader.engine=processes")
        self._compute, self._pins = compute, pins(settings)
        self._workers = max(settings.workers, 1)
        self._ahead = self._workers * settings.prefetch_factor
        self._timeout_s = settings.timeout_s
        self._pool: ThreadPoolExecutor | None = None

    @property
    def choice(self) -> str:
        """Who computes, in words."""
        return f"{self._workers} threads of an executor"

    def run(self, tasks: Iterator[BatchTask]) -> Iterator[Delivery]:
        """Deliver every task, in order."""
        pool = self._pool = self._pool or ThreadPoolExecutor(self._workers)
        waiting: deque[Future[Delivery]] = deque()
        try:
            for task in tasks:
                waiting.append(pool.submit(self._delivery, task))
                if len(waiting) > self._ahead:
                    yield waiting.popleft().result(self._timeout_s)
            while waiting:
                yield waiting.popleft().result(self._timeout_s)
        except TimeoutError:
            raise LoaderTimeoutError(
                f"no batch within loader.timeout_s={self._timeout_s:g} s; raise it, or find where "
                f"it hangs with loader=inline"
            ) from None
        finally:  # the loop went away, or a batch raised
            for future in waiting:
                future.cancel()

    def close(self) -> None:
        """End the threads; the next run starts others."""
        pool, self._pool = self._pool, None
        if pool is not None:
            pool.shutdown(wait=False, cancel_futures=True)

    def _delivery(self, task: BatchTask) -> Delivery:
        delivery = self._compute(task)
        return delivery.pin_memory() if self._pins else delivery
