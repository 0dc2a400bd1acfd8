"""Contracts between the loader and its executors: tasks, deliveries, futures, faults."""

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
    from penstock.pipeline.accelerator import PageLock
    from penstock.pipeline.loader.compute import BatchComputer
    from penstock.pipeline.loader.settings import LoaderSettings


Way = Literal["sample", "columns", "stream"]
"""Ways of a batch: sample by sample, as a whole from columns, or of a stream's items."""


@dataclass(frozen=True, slots=True)
class Capabilities:
    """Capabilities of a loader's parts, read once when it is built.

    Attributes:
        dataset: The dataset.
        sampler: Capabilities of the sampler.
        collate: Capabilities of the collate in use.
        way: How batches are made.
    """

    dataset: Any
    sampler: SamplerCapabilities
    collate: CollateCapabilities
    way: Way

    @classmethod
    def of(cls, dataset: Any, sampler: Any, collate: Any) -> Capabilities:
        """Read what the parts declare."""
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
    """One batch of one rank, to be computed anywhere.

    Attributes:
        epoch: The epoch.
        number: The global batch in the epoch.
        positions: int64 [n], positions in the epoch.
        valid: bool [n], False for rows that only fill the batch.
        indices: int64 [n], the record at each position; empty for a stream.
        items: Raw items of a stream at each position, None for indexed data.
        quarantined: Positions of this task that are known to kill a worker.
        asked: Requests to servers that read the items.
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
    """A bad sample and the action taken: with its split a row of ``bad_samples.csv``."""

    epoch: int
    position: int
    index: int
    key: str
    storage: str
    cause: str
    action: str


@dataclass(frozen=True, slots=True)
class Delivery:
    """A computed batch.

    Attributes:
        number: The global batch in the epoch.
        batch: The batch; None if a stream had no good sample for it.
        faults: Bad samples met on the way.
        positions: Number of valid positions of the task.
        samples: Number of valid rows in the batch.
        real: Elements of ragged fields that are data, as the collate counts them.
        padded: Elements of ragged fields with the padding.
        cut_texts: Number of valid rows that a transform has shortened.
        cut_tokens: Number of elements that were cut from these rows.
        times: How long its stages took, where it was computed.
        quarantined: Positions of the batch that were found to kill a worker.
        row_bytes: Bytes of a row of a batch that can be computed together with others; else 0.
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
        """The same with tensors in place of arrays."""
        return replace(self, batch=mapped(self.batch, to_tensor))

    def pin_memory(self, device: str | None = None) -> Delivery:
        """The same in page-locked memory, as torch's DataLoader asks for it."""

        def pinned(value: Any) -> Any:
            torch = sys.modules.get("torch")
            is_tensor = torch is not None and isinstance(value, torch.Tensor)
            return value.pin_memory() if is_tensor and value.device.type == "cpu" else value

        return replace(self, batch=mapped(self.batch, pinned))


class WorkerFigures(NamedTuple):
    """State of the workers of a loader.

    Attributes:
        workers: Workers that compute; 0: the consumer does.
        ready: Batches that are computed and wait for the consumer.
        restarts: Workers that died or hung and were replaced, since the loader was made.
    """

    workers: int
    ready: int
    restarts: int


class WorkerDiedError(Exception):
    """The worker that computed a task died or hung; the message says how."""


class Future:
    """The result of submitted tasks.

    It crosses in a queue of the interpreter's own. A lock taken in Python code is left locked by
    a Ctrl-C that comes right after it was taken, and the next thread that needs it waits for ever.

    Attributes:
        is_cancelled: The result is not wanted any more.
    """

    __slots__ = ("_outcomes", "is_cancelled")

    def __init__(self) -> None:
        self._outcomes: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self.is_cancelled = False

    @property
    def is_done(self) -> bool:
        """Whether the result waits to be taken."""
        return not self._outcomes.empty()

    def cancel(self) -> None:
        """Drop the tasks, or the result of those that are computed already."""
        self.is_cancelled = True

    def set(self, outcome: Sequence[Delivery | BaseException] | BaseException) -> None:
        """Hand over deliveries, up to the first that failed, or the error of all of them."""
        self._outcomes.put(outcome)

    def result(self, timeout_s: float | None = None) -> Sequence[Delivery | BaseException]:
        """Wait for the result, which can be taken once.

        Raises:
            TimeoutError: It did not come in time.
            BaseException: The error of all of the tasks.
        """
        try:
            outcome = self._outcomes.get(timeout=timeout_s)
        except queue.Empty:
            raise TimeoutError from None
        if isinstance(outcome, BaseException):
            raise outcome
        deliveries: Sequence[Delivery | BaseException] = outcome
        return deliveries


class Executor(ABC):
    """Computes tasks, in any order; the scheduler delivers them in theirs.

    An executor starts with the first run, and computes until it is closed.

    Args:
        compute: Computes a task, see `pipeline.loader.compute.BatchComputer`.
        settings: The settings of the loader.

    Attributes:
        depth: Tasks to submit ahead of the consumer; a bundle of small batches counts as one.
        bundles: Takes several small batches as one submission.
        retries: Raises `WorkerDiedError` for tasks that may be submitted again.
        lives: Workers that may die over a batch before its rows are tried one by one.
        restarts: Workers that were replaced.
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
        """Raise ValueError for components that this kind of executor cannot run."""
        return None

    @classmethod
    @abstractmethod
    def describe(cls, settings: LoaderSettings) -> str:
        """Say who computes."""

    @abstractmethod
    def submit(self, tasks: Sequence[BatchTask], *, probes: bool = False) -> Future:
        """Compute tasks, together where that is possible.

        Args:
            tasks: The tasks.
            probes: Only find out whether a worker survives them, before all other tasks; the
                result is empty.
        """

    def page_lock(self, lock: PageLock) -> None:
        """Write batches to memory of `lock` from now on, where the executor can."""
        return None

    def drop(self) -> None:
        """Act on the end of a run, whose futures are cancelled."""
        return None

    @abstractmethod
    def close(self) -> None:
        """End workers, and let waiting consumers raise `LoaderClosedError`; twice does no harm."""


def to_tensor(value: Any) -> Any:
    """A tensor over the memory of an array of numbers; any other value as it is."""
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
    """`function` of every leaf of plain dicts, lists and tuples."""
    if type(value) is dict:
        return {key: mapped(item, function) for key, item in value.items()}
    if type(value) is list:
        # The usual list is one of keys, and there are many of them.
        if set(map(type, value)) == {str}:
            return value
        return [mapped(item, function) for item in value]
    if type(value) is tuple:
        return tuple(mapped(item, function) for item in value)
    return function(value)
