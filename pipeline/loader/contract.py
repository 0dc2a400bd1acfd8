"""Contracts between the loader and its executors: tasks, deliveries, futures and faults."""

from __future__ import annotations

import queue
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from penstock.core.contracts import (
    AnyDataset,
    CollateCapabilities,
    Dataset,
    SamplerCapabilities,
    StreamDataset,
    capabilities_of,
)
from penstock.core.stage_times import StageTimes, Traffic

if TYPE_CHECKING:
    from penstock.core.sample import Batch
    from penstock.pipeline.loader.compute import BatchComputer
    from penstock.pipeline.loader.device.accelerator import PageLock
    from penstock.pipeline.loader.settings import LoaderSettings


Way = Literal["sample", "columns", "stream"]
"""Ways to make a batch: sample by sample, as columns, or from the items of a stream."""


@dataclass(frozen=True, slots=True)
class Capabilities:
    """Capabilities of a loader's components, read once when it is built, and the way of a batch."""

    dataset: Any
    sampler: SamplerCapabilities
    collate: CollateCapabilities
    way: Way

    @classmethod
    def of(cls, dataset: Any, sampler: Any, collate: Any) -> Capabilities:
        """Read the declared capabilities; raise ValueError if `dataset` is not an `AnyDataset`."""
        if not isinstance(dataset, AnyDataset):
            raise ValueError(
                f"the dataset is a {type(dataset).__qualname__}; extend Dataset or StreamDataset "
                f"of core/contracts.py"
            )
        collate_can = capabilities_of(dataset.collate or collate, CollateCapabilities)
        way: Way = "sample"
        if isinstance(dataset, StreamDataset):
            way = "stream"
        elif isinstance(dataset, Dataset) and dataset.columnar and collate_can.columns is not None:
            way = "columns"
        return cls(dataset, capabilities_of(sampler, SamplerCapabilities), collate_can, way)


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
        asked: Requests to servers made for the items.
    """

    epoch: int
    number: int
    positions: NDArray[np.int64]
    valid: NDArray[np.bool_]
    indices: NDArray[np.int64]
    items: list[Any] | None = None
    quarantined: tuple[int, ...] = ()
    asked: Traffic | None = None


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


@dataclass(frozen=True, slots=True)
class Delivery:
    """The result of a task; `batch` is None if it is empty.

    Attributes:
        positions: Number of valid positions in the task.
        samples: Number of valid rows in the batch.
        real: Elements of ragged fields, without padding.
        padded: Elements of ragged fields, with padding.
        cut_texts: Number of valid rows that a transform truncated.
        cut_tokens: Number of elements cut from these rows.
        quarantined: Positions found to kill a worker.
        row_bytes: Bytes per row of a batch that can be bundled, else 0.
    """

    number: int
    batch: Batch | None
    faults: tuple[Fault, ...] = ()
    positions: int = 0
    samples: int = 0
    real: int = 0
    padded: int = 0
    cut_texts: int = 0
    cut_tokens: int = 0
    times: StageTimes = field(default_factory=StageTimes)
    quarantined: tuple[int, ...] = ()
    row_bytes: int = 0

    @property
    def with_tensors(self) -> Delivery:
        """A copy with tensors in place of arrays."""
        return replace(self, batch=mapped(self.batch, to_tensor))

    def pin_memory(self, device: str | None = None) -> Delivery:
        """Return a copy in page-locked memory, as torch's DataLoader asks for it."""

        def pinned(value: Any) -> Any:
            torch = sys.modules.get("torch")
            is_tensor = torch is not None and isinstance(value, torch.Tensor)
            return value.pin_memory() if is_tensor and value.device.type == "cpu" else value

        return replace(self, batch=mapped(self.batch, pinned))


class WorkerFigures(NamedTuple):
    """Number of workers (0 inline), computed batches that wait, and workers replaced so far."""

    workers: int
    ready: int
    restarts: int


class WorkerDiedError(Exception):
    """The worker of a task died or hung; the message says how.

    Attributes:
        final: Exception class to raise if the task ends every worker.
    """

    def __init__(self, how: str, final: type[Exception]) -> None:
        super().__init__(how)
        self.final = final


class Future:
    """The result of submitted tasks.

    The result crosses threads in a queue implemented in C. A Ctrl-C can leave a lock of Python code
    locked, so that the next thread waits forever.
    """

    __slots__ = ("_outcomes", "is_cancelled")

    def __init__(self) -> None:
        self._outcomes: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self.is_cancelled = False

    @property
    def is_done(self) -> bool:
        """Whether the result is ready."""
        return not self._outcomes.empty()

    def cancel(self) -> None:
        """Drop the tasks, or their result if they are computed already."""
        self.is_cancelled = True

    def set(self, outcome: Sequence[Delivery | BaseException] | BaseException) -> None:
        """Set deliveries up to the first failed task, or the error of all tasks."""
        self._outcomes.put(outcome)

    def result(self, timeout_s: float | None = None) -> Sequence[Delivery | BaseException]:
        """Wait for the result, once; raise TimeoutError or the error of all tasks."""
        try:
            outcome = self._outcomes.get(timeout=timeout_s)
        except queue.Empty:
            raise TimeoutError from None
        if isinstance(outcome, BaseException):
            raise outcome
        deliveries: Sequence[Delivery | BaseException] = outcome
        return deliveries


class Executor(ABC):
    """Compute tasks in any order, with workers that live from the first run until `close`.

    Attributes:
        depth: Tasks to submit ahead of the consumer; a bundle counts as one.
        bundles: Accepts several small batches in one submission.
        retries: Raises `WorkerDiedError` for tasks that may be submitted again.
        lives: Workers that may die at a batch before its rows are computed one by one.
        restarts: Number of workers replaced.
    """

    depth = 1
    bundles = False
    retries = False
    lives = 1
    restarts = 0

    @abstractmethod
    def __init__(self, compute: BatchComputer, settings: LoaderSettings) -> None: ...

    @classmethod
    def check(cls, compute: BatchComputer, settings: LoaderSettings) -> None:
        """Raise ValueError for components that this executor cannot run."""
        return None

    @classmethod
    @abstractmethod
    def describe(cls, settings: LoaderSettings) -> str:
        """Describe the workers, for the log."""

    @abstractmethod
    def submit(self, tasks: Sequence[BatchTask], *, probes: bool = False) -> Future:
        """Submit tasks to compute together if possible.

        With `probes`, compute them before all others to see whether a worker survives; the result
        is empty.
        """

    def page_lock(self, lock: PageLock) -> None:
        """Write batches to memory of `lock` from now on, where the executor can."""
        return None

    def drop(self) -> None:
        """Release a cancelled run."""
        return None

    @abstractmethod
    def close(self) -> None:
        """End the workers; waiting consumers raise `LoaderClosedError`. Safe to call twice."""


def to_tensor(value: Any) -> Any:
    """Return a numeric array as a tensor that shares its memory, and other values unchanged."""
    if isinstance(value, np.ndarray) and value.ndim and value.dtype.kind in "biufc":
        import torch

        return torch.from_numpy(value)
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
