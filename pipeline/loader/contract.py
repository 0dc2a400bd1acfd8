"""Contracts between the loader and its executors: tasks, deliveries, futures and faults."""

from __future__ import annotations

import queue
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from penstock.core.processes import interrupts_held, start_patience
from penstock.core.stage_times import StageTimes, Traffic

if TYPE_CHECKING:
    from penstock.core.sample import Batch
    from penstock.pipeline.loader.arena import Arena
    from penstock.pipeline.loader.compute import BatchComputer
    from penstock.pipeline.loader.device.accelerator import PageLock
    from penstock.pipeline.loader.settings import LoaderSettings


@dataclass(frozen=True, slots=True)
class BatchTask:
    """One batch of one rank, for any worker to compute.

    Attributes:
        number: The global batch in the epoch.
        positions: Positions in the epoch, int64 [n].
        valid: False for padding rows, bool [n].
        indices: Record at each position, int64 [n]; empty for a stream.
        items: Raw item at each position of a stream; None for indexed data.
        quarantined: Positions of this task that kill a worker.
        banned: Records that kill a worker, and so replace no bad sample.
        asked: Requests to servers made for the items.
        is_last_try: The worker may take as long as a start, because the machine may be busy.
    """

    epoch: int
    number: int
    positions: NDArray[np.int64]
    valid: NDArray[np.bool_]
    indices: NDArray[np.int64]
    items: list[Any] | None = None
    quarantined: tuple[int, ...] = ()
    banned: tuple[int, ...] = ()
    asked: Traffic | None = None
    is_last_try: bool = False

    def limit_s(self, timeout_s: float) -> float:
        """Return the seconds after which the worker of this task hangs."""
        return start_patience(timeout_s) if self.is_last_try else timeout_s


@dataclass(frozen=True, slots=True)
class Fault:
    """A bad sample and the action taken: a row of ``bad_samples.csv``, without the split."""

    epoch: int
    position: int
    index: int
    key: str
    storage: str
    cause: str
    action: str


@dataclass(slots=True)
class BatchStats(StageTimes):
    """Counts and stage times of batches; `add` sums them.

    Attributes:
        samples: Valid rows.
        real: Elements of ragged fields, without padding.
        padded: Elements of ragged fields, with padding.
        cut_texts: Valid rows that a transform truncated.
        cut_tokens: Elements that a transform cut off from valid rows.
    """

    samples: int = 0
    real: int = 0
    padded: int = 0
    cut_texts: int = 0
    cut_tokens: int = 0


@dataclass(frozen=True, slots=True)
class Delivery:
    """The result of a task; `batch` is None if it is empty.

    Attributes:
        positions: Number of valid positions in the task.
        quarantined: Positions found to kill a worker.
        row_bytes: Bytes per row of a batch that can be bundled, else 0.
    """

    number: int
    batch: Batch | None
    faults: tuple[Fault, ...] = ()
    positions: int = 0
    stats: BatchStats = field(default_factory=BatchStats)
    quarantined: tuple[int, ...] = ()
    row_bytes: int = 0


class WorkerFigures(NamedTuple):
    """Number of workers (0 inline), computed batches that wait, and workers replaced so far."""

    workers: int
    ready: int
    restarts: int


class WorkerDiedError(Exception):
    """The worker of a task died or hung; `final` is the error if the task ends every worker."""

    def __init__(self, how: str, final: type[Exception]) -> None:
        super().__init__(how)
        self.final = final


class Future:
    """The result of submitted tasks: deliveries up to the first failed task, then its error.

    With `is_cancelled`, the tasks are dropped, or their result if they are computed already. With
    `take`, `result` computes or receives it.

    The result crosses threads in a queue implemented in C. A Ctrl-C can leave a lock of Python code
    locked, so that the next thread waits forever.
    """

    __slots__ = ("_outcomes", "_take", "is_cancelled")

    def __init__(self, take: Callable[[], Sequence[Delivery | BaseException]] | None = None):
        self._take = take
        self._outcomes: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self.is_cancelled = False

    @property
    def is_done(self) -> bool:
        """Whether the result is ready."""
        return not self._outcomes.empty()

    def set(self, outcome: Sequence[Delivery | BaseException] | BaseException) -> None:
        """Set the result, or the error of all tasks."""
        self._outcomes.put(outcome)

    def result(self, timeout_s: float | None = None) -> Sequence[Delivery | BaseException]:
        """Wait for the result, once; raise `queue.Empty`, or the error of all tasks."""
        if self._take is not None:
            return self._take()
        outcome = self._outcomes.get(timeout=timeout_s)
        if isinstance(outcome, BaseException):
            raise outcome
        deliveries: Sequence[Delivery | BaseException] = outcome
        return deliveries


class Executor(ABC):
    """Compute tasks in any order, with workers that live from the first run until `close`.

    Attributes:
        depth: Tasks to submit ahead of the consumer; a bundle counts as one.
        bundles: Accepts several small batches in one submission.
        in_turn: A result is available only after the results of earlier submissions.
        times_out: Ends workers that hang. If not, the scheduler raises an error after `timeout_s`.
        restarts: Number of workers replaced.
        arena: Memory that batches are written to, if this process has it.
    """

    arena: Arena | None = None
    depth = 1
    bundles = False
    in_turn = False
    times_out = False
    restarts = 0

    @abstractmethod
    def __init__(self, compute: BatchComputer, settings: LoaderSettings) -> None: ...

    @abstractmethod
    def submit(self, tasks: Sequence[BatchTask]) -> Future:
        """Submit tasks to compute together if possible."""

    def page_lock(self, lock: PageLock) -> None:
        """Write batches to memory of `lock` from now on."""
        if self.arena is not None:
            self.arena.memory.page_lock(lock)

    def drop(self) -> None:
        """Release a cancelled run."""
        return None

    @abstractmethod
    def close(self) -> None:
        """End the workers; called in the process that made the executor, at its exit too."""


def to_tensor(value: Any) -> Any:
    """Return a numeric array as a tensor that shares its memory, and other values unchanged."""
    if isinstance(value, np.ndarray) and value.ndim and value.dtype.kind in "biufc":
        if "torch" not in sys.modules:
            with interrupts_held():  # an interrupted import of torch cannot be repeated
                import torch  # noqa: F401
        return sys.modules["torch"].from_numpy(value)
    return value


def is_plain(value: Any) -> bool:
    """Whether a value is a tensor in host memory that its bytes, type and shape describe."""
    torch = sys.modules.get("torch")
    if torch is None or type(value) is not torch.Tensor or value.device.type != "cpu":
        return False
    strided = value.layout is torch.strided and not value.requires_grad
    return strided and not (value.is_quantized or value.is_conj() or value.is_neg())


def mapped(value: Any, function: Callable[[Any], Any]) -> Any:
    """Apply `function` to every leaf of plain dicts, lists and tuples."""
    if type(value) is dict:
        return {key: mapped(item, function) for key, item in value.items()}
    if type(value) is list:
        # Most lists are long lists of keys.
        if set(map(type, value)) == {str}:
            return value
        return [mapped(item, function) for item in value]
    if type(value) is tuple:
        return tuple(mapped(item, function) for item in value)
    return function(value)
