"""Batches computed in this process, when they are asked for: for debugging."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from penstock.core.registry import register
from penstock.pipeline.loader.contract import BatchTask, Delivery
from penstock.pipeline.loader.engines.batch_memory import pins
from penstock.pipeline.loader.engines.pool import Pending

if TYPE_CHECKING:
    from penstock.pipeline.loader.compute import BatchComputer
    from penstock.pipeline.loader.settings import LoaderSettings


@register("engine", "inline")
class InlineEngine:
    """Computes every batch in this process and thread.

    Args:
        compute: A task to a delivery.
        settings: Settings of the loader, of which only `pin_memory` matters here.
    """

    choice = "the consumer's own thread"

    def __init__(self, compute: BatchComputer, settings: LoaderSettings) -> None:
        self._compute = compute
        self._settings = settings

    def run(self, tasks: Iterator[BatchTask]) -> Iterator[Delivery]:
        """Deliver every task, in order."""
        pinned = pins(self._settings)
        for task in tasks:
            delivery = self._compute(task)
            yield delivery.pin_memory() if pinned else delivery

    def close(self) -> None:
        """Nothing is held."""


class ConsumerPool:
    """The consumer's own thread as the worker pool: it computes what is asked for.

    Args:
        compute: A task to a delivery.
        settings: Settings of the loader, of which only `pin_memory` matters here.
    """

    depth = 1
    rows_together = 0
    restarts = 0

    def __init__(self, compute: BatchComputer, settings: LoaderSettings) -> None:
        self._compute = compute
        self._pins = pins(settings)

    def submit(self, tasks: Sequence[BatchTask]) -> list[Pending]:
        """Put tasks off until their deliveries are asked for."""
        return [Pending(task) for task in tasks]

    def take(self, pending: Pending) -> Delivery:
        """Compute; raises whatever that raises."""
        delivery = self._compute(pending.task)
        return delivery.pin_memory() if self._pins else delivery

    def drop(self) -> None:
        """Nothing is held."""

    def close(self) -> None:
        """Nothing is held."""
