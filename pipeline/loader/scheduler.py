"""The scheduler: order, depth, small batches together, and tasks that kill their workers."""

from __future__ import annotations

import logging
import weakref
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from penstock.core.processes import interrupts_held, local_ranks
from penstock.datasets.caches.limits import available_bytes
from penstock.pipeline.loader.compute.bundles import MOST_BATCHES, can_join, rows_of_bundle
from penstock.pipeline.loader.contract import (
    BatchTask,
    Delivery,
    Executor,
    Future,
    WorkerDiedError,
    WorkerFigures,
    mapped,
)
from penstock.pipeline.loader.worker_errors import LoaderClosedError

if TYPE_CHECKING:
    from penstock.core.sample import Batch
    from penstock.pipeline.loader.compute import BatchComputer
    from penstock.pipeline.loader.device.accelerator import PageLock
    from penstock.pipeline.loader.settings import LoaderSettings

_logger = logging.getLogger(__name__)

_TRIES = 2
"""A row that ends so many workers alone is quarantined."""

_said: set[str] = set()


class Scheduler:
    """Delivers the batches of tasks in their order, with an executor that the first run starts.

    Args:
        kind: Class of the executor.
        compute: Computes a task.
        settings: Depth, deadlines, and whether workers stay from one run to the next.
    """

    def __init__(
        self, kind: type[Executor], compute: BatchComputer, settings: LoaderSettings
    ) -> None:
        kind.check(compute, settings)
        self._kind = kind
        self._compute = compute
        self._settings = settings
        self._executor: Executor | None = None
        self._finalizer: weakref.finalize[..., Scheduler] | None = None
        self._ahead: deque[tuple[Sequence[BatchTask], Future]] = deque()
        self._restarts = 0  # of executors that are closed
        self._outcomes: deque[Delivery | BaseException] = deque()
        self._lock: PageLock | None = None
        self._is_closed = True
        self._row_bytes = 0

    @property
    def choice(self) -> str:
        """Say who computes."""
        return self._kind.describe(self._settings)

    def workers(self) -> WorkerFigures:
        """Return the state of the workers."""
        ready = sum(len(tasks) * future.is_done for tasks, future in list(self._ahead))
        executor = self._executor
        restarts = self._restarts + (0 if executor is None else executor.restarts)
        return WorkerFigures(self._settings.workers, ready, restarts)

    @property
    def is_ready(self) -> bool:
        """Whether the next delivery is computed."""
        return bool(self._outcomes or (self._ahead and self._ahead[0][1].is_done))

    def page_lock(self, lock: PageLock) -> None:
        """Have batches written to page-locked memory from now on."""
        self._lock = lock
        if self._executor is not None:
            self._executor.page_lock(lock)

    def start(self) -> None:
        """Start the workers, beside whatever else has to be prepared."""
        self._is_closed = False
        self._opened()

    def run(self, tasks: Iterator[BatchTask]) -> Iterator[Delivery]:
        """Deliver every task, in order.

        Raises:
            LoaderClosedError: Another thread closed the scheduler.
            LoaderTimeoutError: No batch came within `timeout_s` from workers that stay.
            WorkerError: Workers cannot be started, or a batch ends every one of them.
            MemoryError: A batch takes more memory than any worker has.
            Exception: A batch could not be computed.
        """
        self._is_closed = False
        is_intact, is_first = False, True
        source = _Source(tasks)
        try:
            self._fill(source)
            while self._ahead:
                delivered = self._delivered(*self._ahead.popleft())
                outcomes = self._outcomes = deque(delivered)
                del delivered
                self._fill(source)
                while outcomes:
                    if isinstance(error := outcomes.popleft(), BaseException):
                        raise error
                    handed = [error]
                    del error  # the consumer alone decides how long a batch lives
                    if is_first and self._settings.workers:
                        _warn_about_memory(handed[0].batch, self._opened().depth, self._settings)
                    is_first = False
                    self._row_bytes = handed[0].row_bytes
                    yield handed.pop()
            if source.error is not None:
                raise source.error
            is_intact = True
        except GeneratorExit:
            is_intact = True
            raise
        finally:
            for _, future in self._ahead:
                future.cancel()
            self._ahead.clear()
            self._outcomes.clear()
            if self._executor is not None:
                self._executor.drop()
            # After an error nothing is known of the workers: threads may hang.
            if not (is_intact and self._settings.persistent_workers):
                self.close()

    def close(self) -> None:
        """End threads and processes; the next run starts new ones."""
        self._is_closed = True
        executor, self._executor = self._executor, None
        if executor is None:
            return
        if self._finalizer is not None:
            self._finalizer.detach()
        self._restarts += executor.restarts
        executor.close()

    def _opened(self) -> Executor:
        """Return the executor, started if it does not run.

        Raises:
            LoaderClosedError: Another thread closed the scheduler.
        """
        if self._is_closed:
            raise LoaderClosedError
        if self._executor is None:
            with interrupts_held():
                executor = self._executor = self._kind(self._compute, self._settings)
                if self._lock is not None:
                    executor.page_lock(self._lock)
                # For a loader that is forgotten; at exit the executor sees to it by itself.
                self._finalizer = weakref.finalize(self, executor.close)
                self._finalizer.atexit = False
        return self._executor

    def _fill(self, source: _Source) -> None:
        """Submit tasks until as many are ahead as the executor wants; a bundle counts as one."""
        executor = self._opened()
        while len(self._ahead) < executor.depth:
            rows = rows_of_bundle(self._row_bytes) if executor.bundles else 0
            tasks = source.bundle(rows)
            if not tasks:
                return
            self._ahead.append((tasks, executor.submit(tasks)))

    def _delivered(
        self, tasks: Sequence[BatchTask], future: Future
    ) -> Sequence[Delivery | BaseException]:
        """Wait for the deliveries of tasks, up to the first that failed."""
        try:
            return future.result()
        except WorkerDiedError as error:
            if len(tasks) == 1:
                return [self._examined(tasks[0], error)]
            return [self._alone(task) for task in tasks]

    def _alone(self, task: BatchTask) -> Delivery | BaseException:
        """Compute a task of several that ended their worker."""
        try:
            return self._opened().submit([task]).result()[0]
        except WorkerDiedError as error:
            return self._examined(task, error)

    def _examined(self, task: BatchTask, death: WorkerDiedError) -> Delivery | BaseException:
        """Compute a task whose worker died, without the rows that end workers alone.

        Return the error of the last death if the batch ends its workers and none of its rows does.
        """
        executor = self._opened()
        for _ in range(executor.lives - 1):
            try:
                return executor.submit([task]).result()[0]
            except WorkerDiedError as error:
                death = error
        killers = self._killers(task)
        held = replace(task, quarantined=(*task.quarantined, *killers))
        for _ in range(_TRIES):
            try:
                outcome = self._opened().submit([held]).result()[0]
            except WorkerDiedError as error:
                death = error
                continue
            if isinstance(outcome, Delivery):
                return replace(outcome, quarantined=killers)
            return outcome
        return death.final(
            f"{death}; this happened {_TRIES} times to batch {task.number} of epoch {task.epoch}, "
            f"and no record of the batch does it alone"
        )

    def _killers(self, task: BatchTask) -> tuple[int, ...]:
        """Find the positions of a task that end the workers which compute them alone."""
        known = set(task.quarantined)
        rows = {p: row for row, p in enumerate(task.positions.tolist()) if p not in known}
        for _ in range(_TRIES):
            probes = [
                (position, self._opened().submit([_one_row(task, row)], probes=True))
                for position, row in rows.items()
            ]
            rows = {p: rows[p] for p, future in probes if not _survives(future)}
        return tuple(rows)


def _survives(future: Future) -> bool:
    try:
        future.result()
    except WorkerDiedError:
        return False
    return True


def _one_row(task: BatchTask, row: int) -> BatchTask:
    rows = slice(row, row + 1)
    return replace(
        task,
        positions=task.positions[rows],
        valid=np.ones(1, np.bool_),
        indices=task.indices[rows],
        items=task.items and task.items[rows],
        quarantined=(),
    )


class _Source:
    """Tasks until they end or raise, so that the batches before an error are delivered first."""

    def __init__(self, tasks: Iterator[BatchTask]) -> None:
        self._tasks = tasks
        self._next: BatchTask | None = None
        self._most = 1  # the consumer waits for the first bundle, which is one batch
        self.error: Exception | None = None

    def bundle(self, most_rows: int) -> list[BatchTask]:
        """Take the next tasks, to be computed as one: up to twice as many each time.

        Args:
            most_rows: Rows that they may have together; the first one may have more.
        """
        first = self._take()
        if first is None:
            return []
        bundle, rows = [first], first.positions.size
        if 2 * rows > most_rows:
            return bundle
        most, self._most = self._most, min(2 * self._most, MOST_BATCHES)
        for _ in range(most - 1):
            task = self._take()
            if task is None:
                break
            rows += task.positions.size
            if rows > most_rows or not can_join(first, task):
                self._next = task
                break
            bundle.append(task)
        return bundle

    def _take(self) -> BatchTask | None:
        task, self._next = self._next, None
        if task is not None or self.error is not None:
            return task
        try:
            return next(self._tasks, None)
        except Exception as error:
            self.error = error
            return None


def _warn_about_memory(batch: Batch | None, depth: int, settings: LoaderSettings) -> None:
    """Log once that the batches that are computed ahead will not fit into memory."""
    size_bytes = _bytes_of(batch) * local_ranks()
    left_bytes = available_bytes()
    if left_bytes is None or depth * size_bytes <= left_bytes or "memory" in _said:
        return
    _said.add("memory")
    fitting = left_bytes // (size_bytes * settings.prefetch_factor)
    remedy = f"loader.num_workers={fitting}" if fitting else "a smaller loader.batch_size"
    _logger.warning(
        "loader: %d batches ahead of %.3g GB take %.3g GB, and this machine or container has %.3g "
        "GB left; type %s, or it may be killed",
        depth, size_bytes / 1e9, depth * size_bytes / 1e9, left_bytes / 1e9, remedy,
    )  # fmt: skip


def _bytes_of(batch: Any) -> int:
    """Count the bytes of all arrays and tensors of a batch."""
    sizes: list[int] = []
    mapped(batch, lambda value: sizes.append(getattr(value, "nbytes", 0)))
    return sum(sizes)
