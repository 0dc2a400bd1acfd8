"""Batches computed in this process, when they are asked for: for debugging."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from pipeline.loader.contract import BatchTask, Delivery
from pipeline.registry import register

if TYPE_CHECKING:
    from pipeline.loader.settings import LoaderSettings


@register("engine", "inline")
class InlineEngine:
    """Computes every batch in this process and thread.

    Args:
        compute: A task to a delivery.
        settings: Settings of the loader, of which only `pin_memory` matters here.
    """

    def __init__(self, compute: Callable[[BatchTask], Delivery], settings: LoaderSettings) -> None:
        self._compute = compute
        self._pin_memory = settings.pin_memory

    @property
    def choice(self) -> str:
        """Who computes, in words."""
        return "the consumer's own thread"

    def run(self, tasks: Iterator[BatchTask]) -> Iterator[Delivery]:
        """Deliver every task, in order."""
        import torch

        pin = self._pin_memory is not False and torch.cuda.is_available()
        for task in tasks:
            delivery = self._compute(task)
            yield delivery.pin_memory() if pin else delivery

    def close(self) -> None:
        """Nothing is held."""
