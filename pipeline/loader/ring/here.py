"""The consumer's own thread as the worker: nothing is handed over, nothing computed ahead."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from pipeline.loader.contract import BatchTask, Delivery
from pipeline.loader.ring.slabs import compute_into_slabs
from pipeline.loader.ring.usage import Usage

if TYPE_CHECKING:
    from pipeline.loader.host_memory import HostMemory


class ConsumerCrew:
    """Computes a task when its delivery is asked for.

    Args:
        compute: A task to a delivery.
        memory: Where batches are put for copies to a device; None: ordinary memory.
    """

    depth = 1
    rows_together = 0
    is_own = True
    is_ready = True
    usage = Usage()

    def __init__(self, compute: Callable[..., Delivery], *, memory: HostMemory | None) -> None:
        self._compute = compute
        self._memory = memory
        self._tasks: dict[int, BatchTask] = {}

    def submit(self, tickets: Sequence[int], tasks: Sequence[BatchTask]) -> None:
        """Keep tasks until their deliveries are asked for."""
        self._tasks.update(zip(tickets, tasks, strict=True))

    def take(self, ticket: int) -> Delivery:
        """Compute; raises whatever that raises."""
        task = self._tasks.pop(ticket)
        if self._memory is None:
            return self._compute(task)
        return compute_into_slabs(lambda **given: [self._compute(task, **given)], self._memory)[0]

    def drop(self) -> None:
        """Forget all that was submitted."""
        self._tasks.clear()

    def close(self) -> None:
        """Nothing is held."""
        self.drop()
