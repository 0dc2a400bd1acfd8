"""Records read before a worker is free to decode them: for storages that are slow to answer."""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections.abc import Callable, Hashable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from penstock.core.stage_times import StageTimes
from penstock.pipeline.loader.contract import BatchTask
from penstock.pipeline.loader.placement import AS_THE_TRAINER, Placement

if TYPE_CHECKING:
    from penstock.pipeline.loader.compute import BatchComputer

_logger = logging.getLogger(__name__)

_MOST_THREADS = 16

_said: set[str] = set()

Given = dict[str, Any]
"""Arguments for a computer beside the task: `records` and the `times` of their reading."""


@dataclass(slots=True)
class _Reading:
    """A task whose records are to be read, and the promise of them."""

    task: BatchTask
    given: Future[Given] = field(default_factory=Future)


class ReadAhead:
    """Threads that read the records of tasks while these wait for a worker.

    What is read is kept until the task's worker takes it, so memory is bounded by the number of
    tasks that were handed out and not begun.

    Args:
        read: The records of a task, or None where its reading is not apart. Its errors are left
            to the worker, which reads again and raises them with all that is known of the task.
        depth: Batches to be read at a time.
        placement: Where its threads run.
    """

    def __init__(
        self,
        read: Callable[[BatchTask], Sequence[Any] | None],
        depth: int,
        placement: Placement = AS_THE_TRAINER,
    ) -> None:
        self._placement = placement
        self._read = read
        self._queue: queue.SimpleQueue[_Reading | None] = queue.SimpleQueue()
        self._readings: dict[Hashable, _Reading] = {}
        self._threads = [
            threading.Thread(target=self._work, name=f"penstock-read-{number}", daemon=True)
            for number in range(min(depth, _MOST_THREADS))
        ]
        for thread in self._threads:
            thread.start()

    def begin(self, ticket: Hashable, task: BatchTask) -> None:
        """Read the records of a task as soon as a thread is free; `ticket` names it."""
        if task.quarantined:  # one of its records may be what kills whoever reads it
            return
        reading = self._readings[ticket] = _Reading(task)
        self._queue.put(reading)

    def take(self, ticket: Hashable) -> Given:
        """Give what was read for a task, waiting for it if it was begun; nothing if it was not."""
        reading = self._readings.pop(ticket, None)
        if reading is None or reading.given.cancel():
            return {}
        return {} if reading.given.exception() else reading.given.result()

    def drop(self) -> None:
        """Forget all tasks. What is being read is read to its end and left aside."""
        while self._readings:
            try:
                self._readings.popitem()[1].given.cancel()
            except KeyError:  # a worker took the last one
                return

    def close(self, timeout_s: float) -> None:
        """End the threads, each after the records that it is at; one that hangs is left behind."""
        self.drop()
        for _ in self._threads:
            self._queue.put(None)
        deadline = time.monotonic() + timeout_s
        for thread in self._threads:
            if thread is not threading.current_thread():
                thread.join(max(0.0, deadline - time.monotonic()))

    def _work(self) -> None:
        self._placement.enter()
        while (reading := self._queue.get()) is not None:
            if reading.given.set_running_or_notify_cancel():
                try:
                    reading.given.set_result(self._timed(reading.task))
                except BaseException as error:
                    reading.given.set_exception(error)
            # Nothing is kept while waiting: records are large.
            del reading

    def _timed(self, task: BatchTask) -> Given:
        start = time.perf_counter()
        records = self._read(task)
        if records is None:
            return {}
        times = StageTimes(read=time.perf_counter() - start)
        times.count(records)
        return {"records": records, "times": times}


def reads_ahead(compute: BatchComputer, depth: int) -> bool:
    """Whether a computer's records are to be read ahead; says once if they cannot be."""
    if not depth or compute.reads_apart:
        return depth > 0
    if "apart" not in _said:
        _said.add("apart")
        _logger.warning(
            "loader.read_ahead=%d changes nothing: this data set gives whole samples and has no "
            "reading of its own; raise loader.num_workers where its storage is slow",
            depth,
        )
    return False
