"""Batches computed in this process: by its threads, or by the thread that takes them."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING

from penstock.core.registry import register
from penstock.pipeline.loader.arena import HELD_BY_CONSUMER, Arena, slots_of
from penstock.pipeline.loader.contract import BatchTask, Executor, Future
from penstock.pipeline.loader.worker import use_one_thread

if TYPE_CHECKING:
    from penstock.pipeline.loader.compute import BatchComputer
    from penstock.pipeline.loader.settings import LoaderSettings

_JOIN_S = 5.0


@register("engine", "threads")
class ThreadsExecutor(Executor):
    """``num_workers`` threads of this process: the least memory, and the fastest start.

    The number of torch's threads stays: it belongs to the whole process, and so to the trainer.
    A thread cannot be ended from outside, so one that hangs ends the run.
    """

    bundles = True
    arena: Arena

    def __init__(self, compute: BatchComputer, settings: LoaderSettings) -> None:
        self.depth = settings.workers * settings.prefetch_factor
        self.arena = Arena(slots_of(settings))
        self._is_closed = False
        self._compute = compute
        self._settings = settings
        self._orders: queue.SimpleQueue[tuple[Future, Sequence[BatchTask]] | None]
        self._orders = queue.SimpleQueue()
        self._threads = [
            threading.Thread(target=self._work, name=f"penstock-{number}", daemon=True)
            for number in range(settings.workers)
        ]
        for thread in self._threads:
            thread.start()

    def submit(self, tasks: Sequence[BatchTask]) -> Future:
        """Give tasks to the next thread that is idle."""
        future = Future()
        self._orders.put((future, tasks))
        return future

    def close(self) -> None:
        """End the threads, each after its batch; one that hangs is left behind."""
        self._is_closed = True
        for _ in self._threads:
            self._orders.put(None)
        deadline = time.monotonic() + min(_JOIN_S, self._settings.timeout_s)
        for thread in self._threads:
            if thread is not threading.current_thread():
                thread.join(max(0.0, deadline - time.monotonic()))

    def _work(self) -> None:
        self._settings.apply_to_worker()
        while (order := self._orders.get()) is not None:
            future, tasks = order
            if not (future.is_cancelled or self._is_closed):
                try:
                    use_one_thread(torch=False)
                    future.set(self._compute.several(tasks, allocate=self.arena.allocate))
                except BaseException as error:
                    future.set(error)
            # Nothing is kept while waiting: the consumer alone decides how long a batch lives.
            del order, future, tasks


@register("engine", "inline")
class InlineExecutor(Executor):
    """Computes every batch when the scheduler takes it: for debugging."""

    arena: Arena

    def __init__(self, compute: BatchComputer, settings: LoaderSettings) -> None:
        self._compute = compute
        self.arena = Arena(1 + HELD_BY_CONSUMER)

    def submit(self, tasks: Sequence[BatchTask]) -> Future:
        """Compute tasks when the scheduler takes their result."""
        return Future(partial(self._compute.several, tasks, allocate=self.arena.allocate))

    def close(self) -> None:
        """Nothing runs."""
