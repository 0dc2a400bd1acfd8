"""What the loader and its engines hand to each other: tasks, deliveries, faults."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
from numpy.typing import NDArray

from datasets.stage_times import StageTimes
from pipeline.loader.ring.packing import mapped

if TYPE_CHECKING:
    from datasets.sample import Batch

# Tensors up to this size travel inside the message. Each larger one takes a shared-memory
# segment, and with it a file descriptor for as long as somebody keeps the batch.
_INLINE_BYTES = 16_384


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
        solo: No other rank takes part, so a batch without samples may be left out.
    """

    epoch: int
    number: int
    positions: NDArray[np.int64]
    valid: NDArray[np.bool_]
    indices: NDArray[np.int64]
    items: list[Any] | None = None
    quarantined: tuple[int, ...] = ()
    solo: bool = True


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
        batch: The batch; None where a stream had no good sample for it.
        faults: Bad samples met on the way.
        positions: Number of valid positions that were asked for.
        samples: Number of valid rows in the batch.
        real: Elements of ragged fields that are data, as the collate counts them.
        padded: Elements of ragged fields with the padding.
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
    times: StageTimes = field(default_factory=StageTimes)
    quarantined: tuple[tuple[int, int], ...] = ()

    def pin_memory(self, device: str | None = None) -> Delivery:
        """The same with every tensor in page-locked memory."""
        from pipeline.copy_stream import map_tensors

        return replace(self, batch=map_tensors(self.batch, lambda tensor: tensor.pin_memory()))

    def __reduce__(self) -> tuple[Callable[..., Delivery], tuple[Any, ...]]:
        packed = mapped(self.batch, _packed)
        counts = (self.positions, self.samples, self.real, self.padded, self.times)
        return _unpack_delivery, (self.number, packed, self.faults, *counts)


class Engine(Protocol):
    """Computes tasks, whoever does it, and delivers in the order of the tasks.

    An engine is made with ``(compute, settings)``: a
    :class:`~pipeline.loader.compute.BatchComputer` and the
    :class:`~pipeline.loader.settings.LoaderSettings`.
    """

    @property
    def choice(self) -> str:
        """Who computes, in words; for an engine that chooses, what it chose and why."""

    def run(self, tasks: Iterator[BatchTask]) -> Iterator[Delivery]:
        """Deliver every task, in order. A new run ends the one before it."""

    def close(self) -> None:
        """Give back processes and memory; the next `run` starts again."""


@dataclass(frozen=True, slots=True)
class _Small:
    """A small tensor on its way between processes."""

    array: NDArray[Any]


def _packed(value: Any) -> Any:
    import torch

    if not isinstance(value, torch.Tensor) or value.dtype == torch.bfloat16:
        return value
    plain = value.device.type == "cpu" and value.layout is torch.strided
    if not plain or not value.is_contiguous() or value.nbytes > _INLINE_BYTES:
        return value
    return _Small(value.detach().numpy())


def _unpack_delivery(
    number: int,
    packed: dict[str, Any] | None,
    faults: tuple[Fault, ...],
    positions: int,
    samples: int,
    real: int,
    padded: int,
    times: StageTimes,
) -> Delivery:
    import torch

    batch = mapped(
        packed, lambda value: torch.from_numpy(value.array) if isinstance(value, _Small) else value
    )
    return Delivery(number, batch, faults, positions, samples, real, padded, times)
