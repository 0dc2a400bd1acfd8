"""A task's metrics of each source, where the data is a mix of several."""

from __future__ import annotations

from typing import Any

from datasets.protocols import Task
from datasets.sample import Batch
from pipeline.training.distributed import World


class SourceMetrics:
    """The metrics of each source's rows, beside those of all; nothing where there is no mix.

    Args:
        task: Makes metrics, and adds rows to them.
        loader: Gives the batches; knows the names of the sources.
        world: The ranks.
    """

    def __init__(self, task: Task, loader: Any, world: World) -> None:
        classes_of = getattr(loader, "classes_of", None)
        self._names = (classes_of("source") if classes_of is not None else None) or ()
        self._metrics = [task.metrics().to(world.device) for _ in self._names]
        self._rows = [0] * len(self._names)
        self._task = task
        self._world = world

    def update(self, outputs: Any, batch: Batch) -> None:
        """Add the valid rows of a batch to those of their sources."""
        if "source" not in batch:  # no mix, or left out by a collate
            return
        for number, metrics in enumerate(self._metrics):
            valid = batch["valid"] & (batch["source"] == number)
            rows = int(valid.sum())
            self._rows[number] += rows
            if rows:
                self._task.update(metrics, outputs, {**batch, "valid": valid})

    def compute(self) -> dict[str, float]:
        """``<source>/<figure>`` of every source that has rows on any rank."""
        figures: dict[str, float] = {}
        rows = self._world.sum(*self._rows) if self._rows else []
        for name, metrics, count in zip(self._names, self._metrics, rows, strict=True):
            if count:
                computed = metrics.compute().items()
                figures |= {f"{name}/{figure}": float(value) for figure, value in computed}
        return figures
