"""Workers that are threads of this process."""

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
from typing import TYPE_CHECKING, Any

from pipeline.loader.bundles import rows_of_bundle
from pipeline.loader.contract import BatchTask, Delivery
from pipeline.loader.ring.blocks import Blocks
from pipeline.loader.ring.board import Board
from pipeline.loader.ring.sharing import Sharing
from pipeline.loader.ring.slabs import compute_into_slabs
from pipeline.loader.ring.usage import Usage
from pipeline.loader.watch import LoaderTimeoutError
from pipeline.loader.worker import quiet_opencv

if TYPE_CHECKING:
    from pipeline.loader.host_memory import HostMemory
    from pipeline.loader.read_ahead import ReadAhead

_JOIN_S = 5.0


@dataclass(frozen=True, slots=True)
class _Raised:
    """An exception and the thread that it was raised in."""

    error: BaseException
    thread: str


@dataclass(frozen=True, slots=True)
class _Item:
    """Tasks for a thread, to be computed as one; with `sharing` the others help."""

    tickets: Sequence[int]
    tasks: Sequence[BatchTask]
    sharing: Sharing | None


class ThreadCrew:
    """Threads of this process that share one computer.

    The first batch is computed by all of them together, so that it comes sooner. Small batches
    that can be made as a whole are computed several at a time.

    torch's number of threads is left alone: it belongs to the whole process, and so to the
    trainer. A thread cannot be ended from outside, so one that hangs ends the run.

    Args:
        compute: A task to a delivery; called from several threads.
        num_threads: Number of threads.
        depth: Batches, or bundles of small ones, to be computed ahead of the consumer.
        timeout_s: Seconds to wait for one batch.
        memory: Where batches are put for copies to a device; None: ordinary memory.
        reader: Reads the records of tasks that wait; ended with the threads. None: workers read.
    """

    def __init__(
        self,
        compute: Callable[..., Delivery],
        num_threads: int,
        *,
        depth: int,
        timeout_s: float,
        memory: HostMemory | None = None,
        reader: ReadAhead | None = None,
    ) -> None:
        self.depth = depth
        self.is_ready = True
        self._owner = os.getpid()
        self._closed = False
        self._compute: Any = compute
        self._timeout_s = timeout_s
        self._memory = memory
        self._blocks = Blocks()
        self._reader = reader
        self._tasks: queue.SimpleQueue[_Item | Sharing | None] = queue.SimpleQueue()
        self._idle = True  # nothing was submitted since the start, or since all was dropped
        self._board = Board()
        self._oldest = 0  # tickets below it were dropped
        self._newest = -1
        self._usages = [Usage() for _ in range(num_threads)]
        quiet_opencv()
        self._threads = [
            threading.Thread(
                target=self._work, args=(usage,), name=f"penstock-{number}", daemon=True
            )
            for number, usage in enumerate(self._usages)
        ]
        for thread in self._threads:
            thread.start()
        # A daemon thread that still computes while the interpreter is taken down can abort it.
        atexit.register(self.close)

    @property
    def usage(self) -> Usage:
        """What all threads have spent on computing since they were started."""
        return sum(self._usages, Usage())

    @property
    def rows_together(self) -> int:
        """Rows of small batches to be computed at once, which the first one tells."""
        return rows_of_bundle(getattr(self._compute, "row_bytes", 0))

    @property
    def is_own(self) -> bool:
        """Whether the threads are of this process: a fork copies none of them."""
        return os.getpid() == self._owner

    def submit(self, tickets: Sequence[int], tasks: Sequence[BatchTask]) -> None:
        """Give tasks to the next thread that is idle."""
        self._newest = tickets[-1]
        if self._reader is not None:
            for ticket, task in zip(tickets, tasks, strict=True):
                self._reader.begin(ticket, task)
        sharing = None
        alone = self._idle and len(tasks) == 1  # what is made as a whole is not spread
        if alone and len(self._threads) > 1 and getattr(self._compute, "spreads", False):
            sharing = Sharing()
        self._idle = False
        self._tasks.put(_Item(tickets, tasks, sharing))
        if sharing is not None:
            for _ in self._threads[1:]:
                self._tasks.put(sharing)

    def take(self, ticket: int) -> Delivery:
        """Wait for a delivery.

        Raises:
            LoaderTimeoutError: It did not come within the deadline; the stacks of all threads
                are its note.
            BaseException: What the computation raised.
        """
        outcome = self._board.take(ticket, self._timeout_s)
        if outcome is None:
            error = LoaderTimeoutError(
                f"loader: no batch within timeout_s={self._timeout_s:g} s, and a thread of this "
                f"process cannot be replaced; raise loader.timeout_s if reading is that slow, "
                f"set loader.processes=1 to have what hangs replaced, or see below where it hangs"
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
        self._oldest = self._newest + 1
        try:
            while True:
                self._tasks.get_nowait()
        except queue.Empty:
            pass
        if self._reader is not None:
            self._reader.drop()
        self._board.clear()
        self._blocks.release()  # the next run may be hours away
        self._idle = True

    def close(self) -> None:
        """End the threads, each after the batch that it is at; one that hangs is left behind."""
        if not self.is_own:
            return
        atexit.unregister(self.close)
        self.drop()
        self._closed = True
        self._board.close()
        for _ in self._threads:
            self._tasks.put(None)
        deadline = time.monotonic() + min(_JOIN_S, self._timeout_s)
        for thread in self._threads:
            if thread is not threading.current_thread():
                thread.join(max(0.0, deadline - time.monotonic()))
        if self._reader is not None:
            self._reader.close(max(0.0, deadline - time.monotonic()))

    def _work(self, usage: Usage) -> None:
        while (item := self._tasks.get()) is not None:
            if isinstance(item, Sharing):
                item.help()
                del item
                continue
            start, cpu_start = time.perf_counter(), time.thread_time()
            for done in self._outcomes(item):
                if item.sharing is None:  # the one that is shared says nothing about a thread
                    wall_s, cpu_s = time.perf_counter(), time.thread_time()
                    usage.batches += len(done)
                    usage.wall_s += wall_s - start
                    usage.cpu_s += cpu_s - cpu_start
                    start, cpu_start = wall_s, cpu_s
                while done:
                    ticket, outcome = done.pop(0)
                    if ticket >= self._oldest:
                        self._board.put(ticket, outcome)
                    del outcome
            # Nothing is kept while waiting: the consumer alone decides how long a batch lives.
            del item

    def _outcomes(self, item: _Item) -> Iterator[list[tuple[int, Delivery | _Raised]]]:
        """What the tasks of an item give, by ticket, up to the first that raises something.

        All at once where they are computed as one; else one after the other.
        """
        if len(item.tasks) > 1 and (together := self._together(item.tasks)):
            yield list(zip(item.tickets, together, strict=True))
            return
        for ticket, task in zip(item.tickets, item.tasks, strict=True):
            try:
                (delivery,) = self._computed(ticket, task, item.sharing)
            except BaseException as error:
                yield [(ticket, _Raised(error, threading.current_thread().name))]
                return
            if ticket < self._oldest:
                return
            yield [(ticket, delivery)]
            del delivery

    def _together(self, tasks: Sequence[BatchTask]) -> list[Delivery]:
        """Deliveries of tasks that are computed as one; none: they are to be computed alone."""
        with suppress(BaseException):  # alone, each raises what is wrong with it
            return self._in_place(partial(self._compute.together, tasks))
        return []

    def _computed(self, ticket: int, task: BatchTask, sharing: Sharing | None) -> list[Delivery]:
        given = {} if self._reader is None else self._reader.take(ticket)
        if sharing is not None:
            given["spread"] = sharing.spread
        try:
            return self._in_place(lambda **memory: [self._compute(task, **memory, **given)])
        finally:
            if sharing is not None:
                sharing.end()

    def _in_place(self, compute: Callable[..., list[Delivery]]) -> list[Delivery]:
        """Deliveries whose images are written to where they are handed over."""
        if self._memory is None:
            return compute(allocate=self._blocks.allocate)
        return compute_into_slabs(compute, self._memory)


def _all_stacks() -> str:
    """Where every thread of this process is."""
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    parts = [
        f"thread {names.get(ident, ident)}:\n{''.join(traceback.format_stack(frame))}"
        for ident, frame in sys._current_frames().items()
    ]
    return "\n".join(parts)
