"""The engine of worker pools: of the one that is asked for, or of those that are tried."""

from __future__ import annotations

import logging
import weakref
from collections.abc import Iterator
from typing import TYPE_CHECKING

from penstock.core.processes import end_unused_server, interrupts_held
from penstock.pipeline.loader.contract import (
    BatchTask,
    Delivery,
    EngineCapabilities,
    WorkerFigures,
)
from penstock.pipeline.loader.engines.batch_memory import pins
from penstock.pipeline.loader.engines.calibration import Calibration
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

_logger = logging.getLogger(__name__)


class PoolEngine:
    """An engine of worker pools, each started when it is first needed.

    Args:
        compute: A task to a delivery.
        settings: How far workers compute ahead, and whether they stay from one run to the next.
        calibration: Says which layout of workers is to compute.
        starter: Starts the workers that are no threads of this process.

    Attributes:
        calibration: The same.
        pools: Those that run, by layout.
        is_settled: Nothing is tried any more, and what was tried has ended.
    """

    def __init__(
        self,
        compute: BatchComputer,
        settings: LoaderSettings,
        calibration: Calibration,
        starter: type[Starter] = ProcessStarter,
    ) -> None:
        self.calibration = calibration
        self._compute = compute
        self._settings = settings
        self._starter = starter
        self._first = calibration.layout
        self.pools: dict[WorkerLayout, WorkerPool] = {}
        self._finalizers: dict[WorkerLayout, weakref.finalize[..., PoolEngine]] = {}
        self._ahead: Ahead = Ahead()
        self._restarts = 0  # in pools that are closed
        self._is_closed = True
        self.is_settled = self._said = calibration.is_over
        if self._first.processes:
            starter.prepare(settings)

    @property
    def choice(self) -> str:
        """Say who computes, and why."""
        layout, reason = self.calibration.layout, self.calibration.reason
        return f"{layout} ({reason})" if reason else str(layout)

    @property
    def capabilities(self) -> EngineCapabilities:
        """It tells how its workers do."""
        return EngineCapabilities(workers=self._figures)

    def _figures(self) -> WorkerFigures:
        ready = sum(pending.is_done for _, bundle in list(self._ahead) for pending in bundle)
        restarts = sum(pool.restarts for pool in self.pools.values())
        return WorkerFigures(self.calibration.layout.workers, ready, self._restarts + restarts)

    def run(self, tasks: Iterator[BatchTask]) -> Iterator[Delivery]:
        """Deliver every task, in order.

        Raises:
            LoaderClosedError: Another thread closed the engine.
            LoaderTimeoutError: No batch came within `timeout_s` from threads of this process.
            WorkerError: Worker processes cannot be started, or a batch ends every one of them.
            ValueError: The data set cannot be sent to worker processes.
        """
        self._is_closed = False
        self.calibration.begin()
        intact, is_first = False, True
        try:
            for pool, delivery in deliver(tasks, self._pool_of_next, self._ahead):
                looks = not self.is_settled
                if looks:
                    self._note(pool, delivery)
                if is_first and self._settings.workers:
                    warn_about_memory(delivery.batch, pool.depth, self._settings)
                    is_first = False
                handed = [delivery]
                del delivery  # kept nowhere here, however long the consumer takes
                yield handed.pop()
                if looks:
                    self.calibration.asked()
            intact = True
        except GeneratorExit:
            intact = True
            raise
        finally:
            self._ahead.clear()
            for pool in self.pools.values():
                pool.drop()
            if intact and not self.is_settled:
                self.calibration.ended()
                if self.calibration.is_over:
                    self._settle()
            # After an error nothing is known of the workers: threads may hang.
            if not (intact and self._settings.persistent_workers):
                self.close()

    def close(self) -> None:
        """End threads and processes; the next run starts new ones, of what was chosen."""
        self._is_closed = True
        for layout in list(self.pools):
            self._close(layout)

    def _pool_of_next(self) -> WorkerPool:
        """The pool that should compute, or the first one while that is not ready yet."""
        while True:
            if self._is_closed:  # by another thread
                raise LoaderClosedError
            layout = self.calibration.layout
            pool = self.pools.get(layout) or self._start(layout)
            try:
                if pool.is_ready or layout == self._first:
                    return pool
            except Exception as error:  # why it never will be ready
                if self.calibration.is_over:  # it was chosen: it has computed before
                    raise
                self._close(layout)
                self.calibration.failed(str(error))
                continue
            self.is_settled = False  # the first one is to be ended again
            return self.pools.get(self._first) or self._start(self._first)

    def _note(self, pool: WorkerPool, delivery: Delivery) -> None:
        """Let the calibration know of a delivery, and end the pools that are not chosen."""
        layout = next(key for key, value in self.pools.items() if value is pool)
        calibration = self.calibration
        if not calibration.is_over:
            if delivery.number == 0:  # who knows what the consumer did between two epochs
                calibration.begin()
            calibration.delivered(layout, delivery.positions, pool.usage)
        elif layout == calibration.layout:
            self._settle()

    def _settle(self) -> None:
        """End the pools that were not chosen, and the server where no processes were."""
        self.is_settled = True
        if not self._said:
            self._said = True
            _logger.info("loader: computed by %s", self.choice)
        layout = self.calibration.layout
        for other in [other for other in self.pools if other != layout]:
            self._close(other)
        if not layout.processes:
            end_unused_server()

    def _start(self, layout: WorkerLayout) -> WorkerPool:
        with interrupts_held():
            pool = self.pools[layout] = self._pool_of(layout)
            # For an engine that is forgotten; at exit the pool sees to it by itself.
            finalizer = self._finalizers[layout] = weakref.finalize(self, pool.close)
            finalizer.atexit = False
        return pool

    def _close(self, layout: WorkerLayout) -> None:
        self._finalizers.pop(layout).detach()
        pool = self.pools.pop(layout)
        self._restarts += pool.restarts
        pool.close()

    def _pool_of(self, layout: WorkerLayout) -> WorkerPool:
        """Start the workers of a layout."""
        from penstock.pipeline.loader.engines.inline import ConsumerPool
        from penstock.pipeline.loader.engines.threads import ThreadPool

        compute, settings = self._compute, self._settings
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
