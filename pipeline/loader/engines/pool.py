"""Worker pools: what one does, and how its deliveries come in order."""

from __future__ import annotations

import logging
import queue
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from penstock.core.processes import local_ranks, usable_cores
from penstock.datasets.caches.limits import available_bytes
from penstock.pipeline.loader.bundles import MOST_BATCHES, can_join
from penstock.pipeline.loader.contract import BatchTask, Delivery, mapped

if TYPE_CHECKING:
    from penstock.core.sample import Batch
    from penstock.pipeline.loader.compute import BatchComputer
    from penstock.pipeline.loader.settings import LoaderSettings

_logger = logging.getLogger(__name__)

_said: set[str] = set()


@dataclass(frozen=True, slots=True)
class WorkerLayout:
    """The threads that compute; with none of either kind, the consumer's own thread does.

    Attributes:
        threads: Threads of this process.
        processes: Threads of each worker process.
    """

    threads: int = 0
    processes: tuple[int, ...] = ()

    @classmethod
    def spread(cls, workers: int, processes: int) -> WorkerLayout:
        """As many workers, spread evenly over worker processes; over none: of this process."""
        if not processes or not workers:
            return cls(threads=workers)
        shares = (workers // processes + (n < workers % processes) for n in range(processes))
        return cls(processes=tuple(shares))

    @property
    def workers(self) -> int:
        """Threads that compute; 0: the consumer's own."""
        return self.threads or sum(self.processes)

    def __str__(self) -> str:
        if not self.processes:
            many = _counted(self.threads, "thread")
            return f"{many} of this process" if self.threads else "the consumer's own thread"
        low, high = min(self.processes), max(self.processes)
        threads = _counted(high, "thread") if low == high else f"{low} to {high} threads"
        each = " each" if len(self.processes) > 1 else ""
        return f"{_counted(len(self.processes), 'process', 'es')} of {threads}{each}"


class Pending:
    """A task that a pool was given, and what comes of it.

    That crosses in a queue of the interpreter's own. A lock taken in Python code is left locked by
    a Ctrl-C that comes right after it was taken, and whoever needs it next waits for ever.

    Attributes:
        task: The task.
    """

    __slots__ = ("_outcomes", "task")

    def __init__(self, task: BatchTask) -> None:
        self.task = task
        self._outcomes: queue.SimpleQueue[Any] = queue.SimpleQueue()

    @property
    def is_done(self) -> bool:
        """Whether what came of it waits to be taken."""
        return not self._outcomes.empty()

    def put(self, outcome: Any) -> None:
        """Hand over what came of the task; nobody may be there any more who takes it."""
        self._outcomes.put(outcome)

    def take(self, timeout_s: float) -> Any:
        """Wait for what came of the task; None if it does not come in time."""
        try:
            return self._outcomes.get(timeout=max(0.0, timeout_s))
        except queue.Empty:
            return None


class WorkerPool(Protocol):
    """Workers that compute tasks, in any order."""

    @property
    def depth(self) -> int:
        """Tasks, or bundles of tasks, that it is given before the first of them is taken."""

    @property
    def rows_together(self) -> int:
        """Rows of small batches that it is best given at once; 0: a batch at a time."""

    @property
    def restarts(self) -> int:
        """Workers that were replaced."""

    def submit(self, tasks: Sequence[BatchTask]) -> list[Pending]:
        """Give tasks, to be computed as one, to the next worker that is idle."""

    def take(self, pending: Pending) -> Delivery:
        """Wait for what comes of a task; raises what its computation raised."""

    def drop(self) -> None:
        """Forget all that was submitted: what is waiting, running or done."""

    def close(self) -> None:
        """End the workers."""


Ahead = deque[list[Pending]]
"""Bundles of tasks that a pool was given."""


def demanded_layout(compute: BatchComputer, settings: LoaderSettings) -> WorkerLayout | None:
    """The layout that settings and components leave no choice of; None if they do.

    Raises:
        ValueError: A component needs a process of its own and may not have one.
    """
    workers, processes = settings.workers, settings.processes
    if workers and compute.global_random:
        if processes == 0:
            raise ValueError(
                "loader.processes is 0, and a component draws from global random states, which "
                "threads share; set loader.processes=null for a process per worker, or "
                "loader.num_workers=0"
            )
        return WorkerLayout.spread(workers, workers)
    if not workers or processes is not None:
        return WorkerLayout.spread(workers, processes or 0)
    return None


def warn_about_cores(settings: LoaderSettings) -> None:
    """Say once that more workers were asked for than there are cores."""
    workers, cores = settings.workers, usable_cores()
    if settings.num_workers != "auto" and workers > cores and "cores" not in _said:
        _said.add("cores")
        _logger.warning(
            "loader.num_workers=%d on %d CPU cores: it works, but more workers than cores "
            "take memory and gain nothing unless they wait for a network",
            workers, cores,
        )  # fmt: skip


def warn_about_memory(batch: Batch | None, depth: int, settings: LoaderSettings) -> None:
    """Say once that the batches that are computed ahead will not fit into memory.

    Args:
        batch: The first of a run, when the others have no memory yet.
        depth: Batches ahead.
        settings: What they come from.
    """
    size_bytes = bytes_of(batch) * local_ranks()
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


def bytes_of(batch: Any) -> int:
    """Bytes of all tensors of a batch."""
    import torch

    sizes: list[int] = []
    mapped(batch, lambda v: sizes.append(v.nbytes if isinstance(v, torch.Tensor) else 0))
    return sum(sizes)


def deliver(
    tasks: Iterator[BatchTask], open_pool: Callable[[], WorkerPool], ahead: Ahead
) -> Iterator[Delivery]:
    """Let a worker pool compute tasks, and yield their deliveries in order.

    Args:
        tasks: What to compute; an error of theirs is raised after all deliveries before it.
        open_pool: Returns the pool, each time tasks are submitted.
        ahead: Empty; holds the tasks that were submitted and not yet taken.

    Raises:
        Exception: What the pool or the tasks raise.
    """
    source = _UntilError(tasks)
    _submit(source, ahead, open_pool())
    while ahead:
        bundle = ahead.popleft()
        for number, pending in enumerate(bundle):
            taken = [open_pool().take(pending)]
            if number == 0:
                _submit(source, ahead, open_pool())
            yield taken.pop()  # kept nowhere here: this may stand still for an evaluation
    if source.error is not None:
        raise source.error


def _submit(source: _UntilError, ahead: Ahead, pool: WorkerPool) -> None:
    """Submit tasks until as many are ahead as the pool computes; a bundle counts as one."""
    while len(ahead) < pool.depth:
        tasks = source.bundle(pool.rows_together)
        if not tasks:
            return
        ahead.append(pool.submit(tasks))


class _UntilError:
    """Tasks until they end or raise, so that what came before an error is delivered first."""

    def __init__(self, tasks: Iterator[BatchTask]) -> None:
        self._tasks = tasks
        self._next: BatchTask | None = None
        self._most = 1  # the first bundle is one batch, since somebody waits for that
        self.error: Exception | None = None

    def bundle(self, most_rows: int) -> list[BatchTask]:
        """The next tasks, to be computed as one: up to twice as many each time; none at the end.

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


def _counted(number: int, noun: str, plural: str = "s") -> str:
    return f"{number} {noun}{'' if number == 1 else plural}"
