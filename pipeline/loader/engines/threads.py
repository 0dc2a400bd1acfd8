"""Batches computed by threads of this process."""

from __future__ import annotations

import atexit
import os
import queue
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from penstock.core.registry import register
from penstock.pipeline.loader.bundles import rows_of_bundle
from penstock.pipeline.loader.contract import BatchTask, Delivery
from penstock.pipeline.loader.engines.batch_memory import BatchMemory, compute_pinned
from penstock.pipeline.loader.engines.pool import Pending, WorkerLayout, demanded_layout
from penstock.pipeline.loader.engines.pool_engine import PoolEngine
from penstock.pipeline.loader.engines.worker import quiet_opencv
from penstock.pipeline.loader.placement import AS_THE_TRAINER, Placement
from penstock.pipeline.loader.worker_errors import LoaderClosedError, LoaderTimeoutError

if TYPE_CHECKING:
    from penstock.pipeline.loader.compute import BatchComputer
    from penstock.pipeline.loader.settings import LoaderSettings

_JOIN_S = 5.0
_TICK_S = 0.5


@register("engine", "threads")
class ThreadsEngine(PoolEngine):
    """``num_workers`` threads of this process: the least memory, and the fastest start.

    Idle threads take the next task. Deliveries come in the order of the tasks, and at most
    ``num_workers * prefetch_factor`` of them are computed ahead. Small batches that need no work
    per sample are computed in bundles of up to 16 batches and 6 MB, and a bundle counts as one.
    Where a component draws from global random states, each worker is a process.

    Args:
        compute: A task to a delivery.
        settings: Number of workers, and how far they compute ahead.

    Raises:
        ValueError: A component needs a process of its own and may not have one.
    """

    def __init__(self, compute: BatchComputer, settings: LoaderSettings) -> None:
        layout = demanded_layout(compute, settings) or WorkerLayout(settings.workers)
        super().__init__(compute, settings, layout)


@dataclass(frozen=True, slots=True)
class _Raised:
    """An exception and the thread that it was raised in."""

    error: BaseException
    thread: str


class ThreadPool:
    """Threads of this process that share one computer.

    Small batches that can be made as a whole are computed several at a time.

    torch's number of threads is left alone: it belongs to the whole process, and so to the
    trainer. A thread cannot be ended from outside, so one that hangs ends the run.

    Args:
        compute: A task to a delivery; called from several threads.
        num_threads: Number of threads.
        depth: Batches, or bundles of small ones, to be computed ahead of the consumer.
        timeout_s: Seconds to wait for one batch.
        pinned: Batches are to lie in page-locked memory.
        placement: Where its threads run.
    """

    restarts = 0

    def __init__(
        self,
        compute: BatchComputer,
        num_threads: int,
        *,
        depth: int,
        timeout_s: float,
        pinned: bool = False,
        placement: Placement = AS_THE_TRAINER,
    ) -> None:
        self.depth = depth
        self._owner = os.getpid()
        self._closed = False
        self._compute = compute
        self._timeout_s = timeout_s
        self._pinned = pinned
        self._placement = placement
        self._memory = BatchMemory()
        self._bundles: queue.SimpleQueue[tuple[int, list[Pending]] | None] = queue.SimpleQueue()
        self._drops = 0  # so often all was forgotten; each bundle knows the number of its time
        quiet_opencv()
        self._threads = [
            threading.Thread(target=self._work, name=f"penstock-{number}", daemon=True)
            for number in range(num_threads)
        ]
        for thread in self._threads:
            thread.start()
        # A daemon thread that still computes while the interpreter is taken down can abort it.
        atexit.register(self.close)

    @property
    def rows_together(self) -> int:
        """Rows of small batches to be computed at once, which the first one tells."""
        return rows_of_bundle(self._compute.row_bytes)

    @property
    def is_own(self) -> bool:
        """Whether the threads are of this process: a fork copies none of them."""
        return os.getpid() == self._owner

    def submit(self, tasks: Sequence[BatchTask]) -> list[Pending]:
        """Give tasks to the next thread that is idle."""
        bundle = [Pending(task) for task in tasks]
        self._bundles.put((self._drops, bundle))
        return bundle

    def take(self, pending: Pending) -> Delivery:
        """Wait for a delivery.

        Raises:
            LoaderTimeoutError: It did not come within the deadline; the stacks of all threads
                are its note.
            LoaderClosedError: The pool was closed meanwhile.
            BaseException: What the computation raised.
        """
        deadline = time.monotonic() + self._timeout_s
        while (outcome := pending.take(min(_TICK_S, deadline - time.monotonic()))) is None:
            if self._closed:
                raise LoaderClosedError
            if time.monotonic() > deadline:
                error = LoaderTimeoutError(
                    f"loader: no batch within timeout_s={self._timeout_s:g} s, and a thread of "
                    f"this process cannot be replaced; raise loader.timeout_s if reading is that "
                    f"slow, set loader.engine=processes to have what hangs replaced, or see below "
                    f"where it hangs"
                )
                error.add_note(_all_stacks())
                raise error
        if isinstance(outcome, _Raised):
            outcome.error.add_note(f"in worker thread {outcome.thread}")
            raise outcome.error
        delivery: Delivery = outcome
        return delivery

    def drop(self) -> None:
        """Forget all that was submitted. What is being computed is finished and left aside."""
        if not self.is_own or self._closed:  # what ends the threads is to stay where it is
            return
        self._drops += 1
        with suppress(queue.Empty):
            while True:
                self._bundles.get_nowait()
        self._memory.release()  # the next run may be hours away

    def close(self) -> None:
        """End the threads, each after the batch that it is at; one that hangs is left behind."""
        if not self.is_own:
            return
        atexit.unregister(self.close)
        self.drop()
        self._closed = True
        for _ in self._threads:
            self._bundles.put(None)
        deadline = time.monotonic() + min(_JOIN_S, self._timeout_s)
        for thread in self._threads:
            if thread is not threading.current_thread():
                thread.join(max(0.0, deadline - time.monotonic()))

    def _work(self) -> None:
        self._placement.enter()
        while (item := self._bundles.get()) is not None:
            for done in self._outcomes(*item):
                while done:
                    pending, outcome = done.pop(0)
                    pending.put(outcome)
                    del pending, outcome
            # Nothing is kept while waiting: the consumer alone decides how long a batch lives.
            del item

    def _outcomes(
        self, drops: int, bundle: list[Pending]
    ) -> Iterator[list[tuple[Pending, Delivery | _Raised]]]:
        """Compute a bundle, up to the first task that raises something.

        All at once where they are computed as one; else one after the other.
        """
        if len(bundle) > 1 and (together := self._together(bundle)):
            yield list(zip(bundle, together, strict=True))
            return
        for pending in bundle:
            if drops != self._drops:
                return
            try:
                (delivery,) = self._computed(pending)
            except BaseException as error:
                yield [(pending, _Raised(error, threading.current_thread().name))]
                return
            yield [(pending, delivery)]
            del delivery

    def _together(self, bundle: list[Pending]) -> list[Delivery]:
        """Deliveries of tasks that are computed as one; none: they are to be computed alone."""
        tasks = [pending.task for pending in bundle]
        with suppress(BaseException):  # alone, each raises what is wrong with it
            return self._in_place(partial(self._compute.together, tasks))
        return []

    def _computed(self, pending: Pending) -> list[Delivery]:
        return self._in_place(lambda **memory: [self._compute(pending.task, **memory)])

    def _in_place(self, compute: Callable[..., list[Delivery]]) -> list[Delivery]:
        """Deliveries whose images are written to where they are handed over."""
        return compute_pinned(compute) if self._pinned else compute(allocate=self._memory.allocate)


def _all_stacks() -> str:
    """The stacks of all threads of this process."""
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    parts = [
        f"thread {names.get(ident, ident)}:\n{''.join(traceback.format_stack(frame))}"
        for ident, frame in sys._current_frames().items()
    ]
    return "\n".join(parts)
