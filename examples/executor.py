"""An executor of one's own, over a pool of the standard library: docs/architecture.md."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from penstock import register
from penstock.pipeline.loader.compute import BatchComputer
from penstock.pipeline.loader.contract import BatchTask, Delivery, Executor, Future
from penstock.pipeline.loader.worker_errors import LoaderTimeoutError


@register("engine", "executor")
class PoolExecutor(Executor):
    """``num_workers`` threads of a `ThreadPoolExecutor`; one that hangs holds the program's end."""

    def __init__(self, compute: BatchComputer, settings: Any) -> None:
        self._compute, self._timeout_s = compute, settings.timeout_s
        self.depth = settings.workers * settings.prefetch_factor
        self._pool = ThreadPoolExecutor(settings.workers)

    @classmethod
    def check(cls, compute: BatchComputer, settings: Any) -> None:
        """Refuse components that threads cannot run."""
        if compute.global_random:
            raise ValueError("a component draws from global states; type loader=processes")

    @classmethod
    def describe(cls, settings: Any) -> str:
        """Say who computes."""
        return f"{settings.workers} threads of an executor"

    def submit(self, tasks: Sequence[BatchTask], *, probes: bool = False) -> Future:
        """Compute tasks in a thread."""
        future = _Patient(self._timeout_s)
        self._pool.submit(self._work, future, tasks)
        return future

    def close(self) -> None:
        """End the threads."""
        self._pool.shutdown(wait=False, cancel_futures=True)

    def _work(self, future: Future, tasks: Sequence[BatchTask]) -> None:
        future.set(self._compute.several(tasks))


class _Patient(Future):
    """A result with a deadline."""

    def __init__(self, timeout_s: float) -> None:
        super().__init__()
        self._timeout_s = timeout_s

    def result(self, timeout_s: float | None = None) -> Sequence[Delivery | BaseException]:
        """Wait for the result, at most for the loader's deadline."""
        try:
            return super().result(self._timeout_s)
        except TimeoutError:
            raise LoaderTimeoutError(
                f"no batch within loader.timeout_s={self._timeout_s:g} s; raise it, or find where "
                f"it hangs with loader=inline"
            ) from None
