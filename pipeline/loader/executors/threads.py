"""Batches computed by threads of this process."""

from __future__ import annotations

import atexit
import os
import queue
import sys
import threading
import time
import traceback
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from penstock.core.registry import register
from penstock.pipeline.loader.contract import BatchTask, Delivery, Executor, Future
from penstock.pipeline.loader.memory import BatchMemory
from penstock.pipeline.loader.placement import placement_of, warn_about_cores
from penstock.pipeline.loader.worker import quiet_opencv
from penstock.pipeline.loader.worker_errors import LoaderClosedError, LoaderTimeoutError

if TYPE_CHECKING:
    from penstock.pipeline.loader.compute import BatchComputer
    from penstock.pipeline.loader.device.accelerator import PageLock
    from penstock.pipeline.loader.settings import LoaderSettings

_JOIN_S = 5.0
_TICK_S = 0.5


@register("engine", "threads")
class ThreadsExecutor(Executor):
    """``num_workers`` threads of this process: the least memory, and the fastest start.

    Torch's number of threads is left alone: it belongs to the whole process, and so to the
    trainer. A thread cannot be ended from outside, so one that hangs ends the run.
    """

    bundles = True

    def __init__(self, compute: BatchComputer, settings: LoaderSettings) -> None:
        self.depth = settings.workers * settings.prefetch_factor
        self._owner = os.getpid()
        self._is_closed = False
        self._compute = compute
        self._timeout_s = settings.timeout_s
        self._placement = placement_of(settings)
        self._memory = BatchMemory()
        self._orders: queue.SimpleQueue[tuple[Future, Sequence[BatchTask]] | None]
        self._orders = queue.SimpleQueue()
        warn_about_cores(settings)
        quiet_opencv()
        self._threads = [
            threading.Thread(target=self._work, name=f"penstock-{number}", daemon=True)
            for number in range(settings.workers)
        ]
        for thread in self._threads:
            thread.start()
        # A daemon thread that still computes while the interpreter is taken down can abort it.
        atexit.register(self.close)

    @classmethod
    def describe(cls, settings: LoaderSettings) -> str:
        """Say who computes."""
        return f"{settings.workers} thread{'s' * (settings.workers != 1)} of this process"

    def page_lock(self, lock: PageLock) -> None:
        """Compute batches in page-locked memory."""
        self._memory.page_lock(lock)

    def submit(self, tasks: Sequence[BatchTask], *, probes: bool = False) -> Future:
        """Give tasks to the next thread that is idle."""
        future = _ThreadFuture(self)
        self._orders.put((future, tasks))
        return future

    def wait(
        self, take: Callable[[float], Sequence[Delivery | BaseException]]
    ) -> Sequence[Delivery | BaseException]:
        """Wait for a result.

        Args:
            take: Waits for so many seconds.

        Raises:
            LoaderTimeoutError: It did not come within the deadline; a note has all stacks.
            LoaderClosedError: The executor was closed meanwhile.
        """
        deadline = time.monotonic() + self._timeout_s
        while True:
            try:
                return take(max(0.0, min(_TICK_S, deadline - time.monotonic())))
            except TimeoutError:
                if self._is_closed:
                    raise LoaderClosedError from None
            if time.monotonic() > deadline:
                error = LoaderTimeoutError(
                    f"loader: no batch within timeout_s={self._timeout_s:g} s, and a thread of "
                    f"this process cannot be replaced; raise loader.timeout_s if reading is that "
                    f"slow, set loader.engine=processes to have what hangs replaced, or see below "
                    f"where it hangs"
                )
                error.add_note(_all_stacks())
                raise error

    def drop(self) -> None:
        """Give back memory that is free: the next run may be hours away."""
        if os.getpid() == self._owner:
            self._memory.release()

    def close(self) -> None:
        """End the threads, each after its batch; one that hangs is left behind."""
        if os.getpid() != self._owner:  # a fork copies no threads
            return
        atexit.unregister(self.close)
        self.drop()
        self._is_closed = True
        for _ in self._threads:
            self._orders.put(None)
        deadline = time.monotonic() + min(_JOIN_S, self._timeout_s)
        for thread in self._threads:
            if thread is not threading.current_thread():
                thread.join(max(0.0, deadline - time.monotonic()))

    def _work(self) -> None:
        self._placement.enter()
        while (order := self._orders.get()) is not None:
            if not (order[0].is_cancelled or self._is_closed):
                order[0].set(self._outcomes(order[1]))
            # Nothing is kept while waiting: the consumer alone decides how long a batch lives.
            del order

    def _outcomes(
        self, tasks: Sequence[BatchTask]
    ) -> Sequence[Delivery | BaseException] | BaseException:
        try:
            outcomes = self._compute.several(tasks, allocate=self._memory.allocate)
        except BaseException as error:
            outcomes = [error]
        if isinstance(last := outcomes[-1], BaseException):
            last.add_note(f"in worker thread {threading.current_thread().name}")
        return outcomes


class _ThreadFuture(Future):
    """A result that a thread computes."""

    __slots__ = ("_executor",)

    def __init__(self, executor: ThreadsExecutor) -> None:
        super().__init__()
        self._executor = executor

    def result(self, timeout_s: float | None = None) -> Sequence[Delivery | BaseException]:
        """Wait for the result, at most for the loader's deadline."""
        return self._executor.wait(super().result)


def _all_stacks() -> str:
    """The stacks of all threads of this process."""
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    parts = [
        f"thread {names.get(ident, ident)}:\n{''.join(traceback.format_stack(frame))}"
        for ident, frame in sys._current_frames().items()
    ]
    return "\n".join(parts)
