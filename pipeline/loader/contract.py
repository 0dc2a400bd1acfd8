"""Contracts between the loader and its engines: the way of a batch, tasks, deliveries, faults."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Protocol

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


Way = Literal["sample", "columns", "stream"]
"""Ways of a batch: sample by sample, as a whole from columns, or of a stream's items."""


@dataclass(frozen=True, slots=True)
class Capabilities:
    """Capabilities of a loader's parts, read once when it is built.

    Attributes:
        dataset: The dataset.
        sampler: What the sampler can.
        collate: What the collate can that puts the samples together.
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
        asked: What servers were asked for, to read the items.
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
    """A bad sample and what was done about it: with its split a row of ``bad_samples.csv``."""

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
        positions: Number of valid positions that were asked for.
        samples: Number of valid rows in the batch.
        real: Elements of ragged fields that are data, as the collate counts them.
        padded: Elements of ragged fields with the padding.
        cut_texts: Number of valid rows that a transform has shortened.
        cut_tokens: Number of elements that were cut from these rows.
        times: How long its stages took, where it was computed.
        quarantined: Epoch and position of what was found to kill a worker; set by the engine
            that found it, in the consumer's process.
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
    quarantined: tuple[tuple[int, int], ...] = ()

    def pin_memory(self, device: str | None = None) -> Delivery:
        """The same with every tensor in page-locked memory."""
        import torch

        def pinned(value: Any) -> Any:
            on_host = isinstance(value, torch.Tensor) and value.device.type == "cpu"
            return value.pin_memory() if on_host else value

        return replace(self, batch=mapped(self.batch, pinned))


class WorkerFigures(NamedTuple):
    """How the workers of an engine do.

    Attributes:
        workers: Those that compute now; 0: the consumer does.
        ready: Batches that are computed and wait for the consumer.
        restarts: Workers that died or hung and were replaced, since the engine was made.
    """

    workers: int
    ready: int
    restarts: int


@dataclass(frozen=True, slots=True)
class EngineCapabilities:
    """What an engine can do besides.

    Attributes:
        workers: Tells how its workers do; None: nobody knows.
    """

    workers: Callable[[], WorkerFigures] | None = None


class Engine(Protocol):
    """Computes tasks, whoever does it, and delivers in the order of the tasks.

    An engine is made with ``(compute, settings)``: a
    :class:`~pipeline.loader.compute.BatchComputer` and the
    :class:`~pipeline.loader.settings.LoaderSettings`. What it owes:

    * `settings.workers` compute, at most ``workers * prefetch_factor`` tasks ahead of the consumer;
    * where `compute.global_random`, each worker owns its process; an engine of threads refuses;
    * a batch that takes longer than `settings.timeout_s` raises `LoaderTimeoutError`;
    * where :func:`~penstock.pipeline.loader.engines.batch_memory.pins`, deliveries are pinned;
    * what `compute` raises comes out where its batch would; Ctrl-C is for the main thread alone;
    * with `settings.persistent_workers` off, workers end with their run.
    """

    @property
    def choice(self) -> str:
        """Say who computes."""

    def run(self, tasks: Iterator[BatchTask]) -> Iterator[Delivery]:
        """Deliver every task, in order; the loader closes one run before it begins another."""

    def close(self) -> None:
        """Give back processes and memory; the next `run` starts again."""


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
