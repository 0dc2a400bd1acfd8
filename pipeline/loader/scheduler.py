"""The scheduler: order, depth, small batches together, and tasks that kill their workers."""

from __future__ import annotations

import atexit
import faulthandler
import os
import queue
import weakref
from collections import deque
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from penstock.core.processes import interrupts_held
from penstock.pipeline.loader.compute import BUNDLE_BYTES, MOST_BATCHES, can_join
from penstock.pipeline.loader.contract import (
    BatchTask,
    Delivery,
    Executor,
    Future,
    WorkerDiedError,
    WorkerFigures,
)
from penstock.pipeline.loader.executors import executor_named
from penstock.pipeline.loader.worker_errors import LoaderClosedError, LoaderTimeoutError

if TYPE_CHECKING:
    from penstock.pipeline.loader.compute import BatchComputer
    from penstock.pipeline.loader.device.accelerator import PageLock
    from penstock.pipeline.loader.settings import LoaderSettings

_TRIES = 3
"""Workers that die at a row alone before it is quarantined, or at a batch without such rows."""


class Scheduler:
    """Delivers the batches of tasks in their order, with an executor that the first run starts.

    Args:
        engine: Name of the executor.
        compute: Computes a task.
        settings: Depth, deadlines, and whether workers stay from one run to the next.
    """

    def __init__(self, engine: str, compute: BatchComputer, settings: LoaderSettings) -> None:
        self._engine = engine
        self._compute = compute
        self._settings = settings
        self._executor: Executor | None = None
        self._end: Callable[[], object]
        self._ahead: deque[tuple[Sequence[BatchTask], Future]] = deque()
        self._awaited = Future()
        self._restarts = 0  # of executors that are closed
        self._outcomes: deque[Delivery | BaseException] = deque()
        self._lock: PageLock | None = None
        self._is_closed = True
        self._row_bytes = 0

    @property
    def choice(self) -> str:
        """Say who computes."""
        workers = f" with {self._settings.workers} workers" if self._engine != "inline" else ""
        return f"loader={self._engine}{workers}"

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
        """Start the executor before the first run."""
        self._is_closed = False
        self._opened()

    def run(self, tasks: Iterator[BatchTask]) -> Generator[Delivery]:
        """Deliver every task, in order.

        Raises:
            LoaderClosedError: Another thread closed the scheduler.
            LoaderTimeoutError: No batch came within `timeout_s` from workers that stay.
            WorkerError: Workers cannot be started, or a batch ends every one of them.
            MemoryError: A batch takes more memory than any worker has.
            Exception: A component raised.
        """
        self._is_closed, is_intact = False, True
        bundles = self._bundles(tasks)
        try:
            self._fill(bundles)
            while self._ahead:
                outcomes = self._outcomes = deque(self._delivered(*self._ahead.popleft()))
                self._fill(bundles)
                while outcomes:
                    if isinstance(outcomes[0], BaseException):
                        raise outcomes[0]
                    self._row_bytes = outcomes[0].row_bytes
                    # Without a name here: the consumer alone decides how long a batch lives.
                    yield outcomes.popleft()  # type: ignore[misc]
        except BaseException as error:
            is_intact = isinstance(error, GeneratorExit)
            raise
        finally:
            for _, future in self._ahead:
                future.is_cancelled = True
            self._ahead.clear()
            self._outcomes.clear()
            # After an error nothing is known of the workers: threads may hang.
            if not (is_intact and self._settings.persistent_workers):
                self.close()
            elif self._executor is not None:
                self._executor.drop()

    def compute(self, task: BatchTask) -> Delivery:
        """Deliver a task out of turn: from a worker, so that it may end its process."""
        executor = self._opened()
        if executor.in_turn:
            return self._compute(task)
        [outcome] = self._delivered([task], executor.submit([task]))
        if isinstance(outcome, BaseException):
            raise outcome
        return outcome

    def close(self) -> None:
        """End threads and processes; the next run starts new ones."""
        self._is_closed = True
        executor, self._executor = self._executor, None
        if executor is None:
            return
        self._awaited.set(LoaderClosedError())  # to a thread that waits
        self._restarts += executor.restarts
        self._end()

    def _opened(self) -> Executor:
        """Return the executor, started if it does not run.

        Raise LoaderClosedError if another thread closed the scheduler.
        """
        if self._is_closed:
            raise LoaderClosedError
        if self._executor is None:
            with interrupts_held():
                kind = executor_named(self._engine)
                executor = self._executor = kind(self._compute, self._settings)
                if self._lock is not None:
                    executor.page_lock(self._lock)
                # At exit before multiprocessing, which would join workers that wait.
                end = partial(_close, executor, os.getpid())
                atexit.register(end)
                self._end = weakref.finalize(self, _end_now, end)  # also if it is forgotten
        return self._executor

    def _fill(self, bundles: Iterator[list[BatchTask]]) -> None:
        """Submit tasks until as many are ahead as the executor wants; a bundle counts as one."""
        executor = self._opened()
        while len(self._ahead) < executor.depth:
            try:
                tasks = next(bundles, [])
            except Exception as error:  # the batches before it are delivered first
                future = Future()
                future.set(error)
                self._ahead.append(([], future))
                continue
            if not tasks:
                return
            self._ahead.append((tasks, executor.submit(tasks)))

    def _bundles(self, tasks: Iterator[BatchTask]) -> Iterator[list[BatchTask]]:
        """Yield tasks in bundles to compute as one; after an error, first the tasks before it."""
        bundle: list[BatchTask] = []
        try:
            for task in tasks:
                if bundle and not can_join(bundle[0], task):
                    yield bundle
                    bundle = []
                bundle.append(task)
                if len(bundle) >= self._most_batches(task):
                    yield bundle
                    bundle = []
        except Exception:
            if bundle:
                yield bundle
            raise
        if bundle:
            yield bundle

    def _most_batches(self, task: BatchTask) -> int:
        """Return how many batches like this one a bundle has; 1 until a row's size is known."""
        size_bytes = self._row_bytes * task.positions.size
        if not (self._opened().bundles and size_bytes):
            return 1
        return min(MOST_BATCHES, max(1, BUNDLE_BYTES // size_bytes))

    def _delivered(
        self, tasks: Sequence[BatchTask], future: Future
    ) -> Sequence[Delivery | BaseException]:
        """Wait for the deliveries of tasks, up to the first that failed."""
        executor, timeout_s = self._opened(), self._settings.timeout_s
        self._awaited = future
        try:
            return future.result(None if executor.times_out else timeout_s)
        except WorkerDiedError as error:
            if len(tasks) == 1:
                return [self._examined(tasks[0], error)]
            return [self._delivered([task], executor.submit([task]))[0] for task in tasks]
        except queue.Empty:
            faulthandler.dump_traceback(2)
            raise LoaderTimeoutError(
                f"loader: no batch within timeout_s={timeout_s:g} s from {self.choice}; the stacks "
                f"above show where it hangs; raise loader.timeout_s or set loader.engine=processes"
            ) from None

    def _examined(self, task: BatchTask, death: WorkerDiedError) -> Delivery | BaseException:
        """Compute a task whose worker died, without the rows that end workers alone.

        Return the error of the last death if the batch ends its workers and none of its rows does.
        """
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
        suspects = [*rows]
        for attempt in range(_TRIES):
            is_last = attempt == _TRIES - 1
            probes = (self._opened().submit([_one_row(task, rows[p], is_last)]) for p in suspects)
            # All at once, and again one after the other: other programs kill workers too, a busy
            # machine exceeds `timeout_s`, and Ray loses an answer when the next task ends its
            # worker.
            pairs = zip(suspects, probes if attempt else [*probes], strict=True)
            suspects = [p for p, future in pairs if not _survives(future)]
        return tuple(suspects)


def _close(executor: Executor, pid: int) -> None:
    if os.getpid() == pid:  # and not in a fork
        executor.close()


def _end_now(end: Callable[[], None]) -> None:
    atexit.unregister(end)
    end()


def _survives(future: Future) -> bool:
    try:
        future.result()
    except WorkerDiedError as error:
        return error.final is MemoryError  # no fault of the record
    return True


def _one_row(task: BatchTask, row: int, is_last_try: bool) -> BatchTask:
    rows = slice(row, row + 1)
    return replace(
        task,
        positions=task.positions[rows],
        valid=np.ones(1, np.bool_),
        indices=task.indices[rows],
        items=task.items and task.items[rows],
        quarantined=(),
        is_last_try=is_last_try,
    )
