"""The engine of a worker pool, which the layout of its workers decides."""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from typing import TYPE_CHECKING

from penstock.core.processes import interrupts_held
from penstock.pipeline.loader.contract import (
    BatchTask,
    Delivery,
    EngineCapabilities,
    WorkerFigures,
)
from penstock.pipeline.loader.engines.batch_memory import pins
from penstock.pipeline.loader.engines.pool import (
    Ahead,
    WorkerLayout,
    WorkerPool,
    deliver,
    warn_about_cores,
    warn_about_memory,
)
from penstock.pipeline.loader.engines.watched_pool import Starter, WatchedPool
from penstock.pipeline.loader.engines.worker_process import ProcessStarter
from penstock.pipeline.loader.placement import placement_of
from penstock.pipeline.loader.worker_errors import LoaderClosedError

if TYPE_CHECKING:
    from penstock.pipeline.loader.compute import BatchComputer
    from penstock.pipeline.loader.settings import LoaderSettings


class PoolEngine:
    """An engine of one worker pool, which the first run starts.

    Args:
        compute: A task to a delivery.
        settings: How far workers compute ahead, and whether they stay from one run to the next.
        layout: The workers.
        starter: Starts the workers outside of this process.

    Attributes:
        layout: The workers.
        pool: The pool; None while it does not run.
    """

    def __init__(
        self,
        compute: BatchComputer,
        settings: LoaderSettings,
        layout: WorkerLayout,
        starter: type[Starter] = ProcessStarter,
    ) -> None:
        self.layout = layout
        self.pool: WorkerPool | None = None
        self._compute = compute
        self._settings = settings
        self._starter = starter
        self._finalizer: weakref.finalize[..., PoolEngine] | None = None
        self._ahead: Ahead = Ahead()
        self._restarts = 0  # in pools that are closed
        self._is_closed = True
        if layout.processes:
            starter.prepare(settings)

    @property
    def choice(self) -> str:
        """Say who computes."""
        return str(self.layout)

    @property
    def capabilities(self) -> EngineCapabilities:
        """It tells how its workers do."""
        return EngineCapabilities(workers=self._figures)

    def _figures(self) -> WorkerFigures:
        ready = sum(pending.is_done for bundle in list(self._ahead) for pending in bundle)
        pool = self.pool
        restarts = 0 if pool is None else pool.restarts
        return WorkerFigures(self.layout.workers, ready, self._restarts + restarts)

    def run(self, tasks: Iterator[BatchTask]) -> Iterator[Delivery]:
        """Deliver every task, in order.

        Raises:
            LoaderClosedError: Another thread closed the engine.
            LoaderTimeoutError: No batch came within `timeout_s` from threads of this process.
            WorkerError: Worker processes cannot be started, or a batch ends every one of them.
            ValueError: The data set cannot be sent to worker processes.
        """
        self._is_closed = False
        intact, is_first = False, True
        try:
            for delivery in deliver(tasks, self._open_pool, self._ahead):
                if is_first and self._settings.workers:
                    warn_about_memory(delivery.batch, self._open_pool().depth, self._settings)
                    is_first = False
                handed = [delivery]
                del delivery  # kept nowhere here, however long the consumer takes
                yield handed.pop()
            intact = True
        except GeneratorExit:
            intact = True
            raise
        finally:
            self._ahead.clear()
            if self.pool is not None:
                self.pool.drop()
            # After an error nothing is known of the workers: threads may hang.
            if not (intact and self._settings.persistent_workers):
                self.close()

    def close(self) -> None:
        """End threads and processes; the next run starts new ones."""
        self._is_closed = True
        pool, self.pool = self.pool, None
        if pool is None:
            return
        if self._finalizer is not None:
            self._finalizer.detach()
        self._restarts += pool.restarts
        pool.close()

    def _open_pool(self) -> WorkerPool:
        """Return the pool, started if it does not run.

        Raises:
            LoaderClosedError: Another thread closed the engine.
        """
        if self._is_closed:
            raise LoaderClosedError
        if self.pool is None:
            with interrupts_held():
                pool = self.pool = self._started()
                # For an engine that is forgotten; at exit the pool sees to it by itself.
                self._finalizer = weakref.finalize(self, pool.close)
                self._finalizer.atexit = False
        return self.pool

    def _started(self) -> WorkerPool:
        """Start the workers."""
        from penstock.pipeline.loader.engines.inline import ConsumerPool
        from penstock.pipeline.loader.engines.threads import ThreadPool

        compute, settings, layout = self._compute, self._settings, self.layout
        if layout == WorkerLayout():
            return ConsumerPool(compute, settings)
        depth = settings.workers * settings.prefetch_factor
        if layout.processes:
            starter = self._starter(compute, settings, len(layout.processes))
            return WatchedPool(starter, settings, threads=layout.processes, depth=depth)
        warn_about_cores(settings)
        return ThreadPool(
            compute,
            layout.threads,
            depth=depth,
            timeout_s=settings.timeout_s,
            pinned=pins(settings),
            placement=placement_of(settings),
        )
