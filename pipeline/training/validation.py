"""Compute loss and metrics over validation batches, and check the size of their images."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from itertools import islice
from typing import Any

import numpy as np
import torch
from torch import nn

from penstock.core.contracts import ClassTask, Task, TaskGroup
from penstock.core.sample import Batch
from penstock.pipeline.learning.losses import loss_if_any
from penstock.pipeline.loader.device.queue import DeviceQueue
from penstock.pipeline.training.checkpoint import random_states, restore_random_states
from penstock.pipeline.training.distributed.world import World
from penstock.pipeline.training.report import Meter
from penstock.transforms.cpu.stack import ordered_steps

_log = logging.getLogger(__name__)


@torch.no_grad()
def validate(
    model: nn.Module,
    task: Task,
    batches: DeviceQueue,
    world: World,
    *,
    precision: Callable[[], AbstractContextManager[object]],
    limit: int | None,
    interrupted: Callable[[], bool],
    meter: Meter,
    by_class: bool = False,
    progress: Callable[[int], None] = lambda done: None,
) -> dict[str, Any] | None:
    """Loss and metrics over the valid rows of all ranks.

    Training does not notice: the random states stay as they are found.

    Args:
        model: The model itself, not its data-parallel wrap: ranks may have unequal work.
        task: Gives losses and metrics.
        batches: What to validate on.
        world: The ranks that share the batches.
        precision: Makes the autocast context.
        limit: Batches to take; None: all.
        interrupted: Whether to break off; asked on every rank after each batch.
        meter: Counts the samples and the time.
        by_class: Take the figures by class of a `ClassTask`, or a `TaskGroup`, too.
        progress: Is told how many batches are done.

    Returns:
        ``loss``, if there is one, the task's metrics, and those of each source of a mix as
        ``<source>/<figure>``: numbers, and tensors of what is told by class; None if it was
        broken off.
    """
    before = random_states()
    world.take_buffers(model)
    model.eval()
    in_detail = task if by_class and isinstance(task, ClassTask | TaskGroup) else None
    metrics = (in_detail.metrics_by_class() if in_detail else task.metrics()).to(world.device)
    by_source = SourceMetrics(task, batches.loader, world)
    has_loss = True
    loss_sum, rows = torch.zeros((), dtype=torch.float64, device=world.device), 0
    try:
        batches.set_epoch(0)
        meter.start()
        for done, batch in enumerate(islice(iter(batches), limit)):
            progress(done)
            with precision():
                outputs = model(batch)
                loss = loss_if_any(task, outputs, batch)
            if batch["num_valid"]:
                task.update(metrics, outputs, batch)
                by_source.update(outputs, batch)
                if loss is None:
                    has_loss = False
                else:
                    loss_sum += loss.double() * batch["num_valid"]
                rows += batch["num_valid"]
            if world.sum(float(interrupted()))[0]:
                return None
        world.sum_tensor(loss_sum)
        [all_rows] = world.sum(rows)
        meter.step(int(all_rows))
        if not all_rows:
            return {}
        with warnings.catch_warnings():
            # A rank that saw no valid row has not been updated, and is right all the same.
            warnings.filterwarnings("ignore", message=".*before the ``update`` method.*")
            figures = {
                name: value.cpu() if in_detail and np.ndim(value) else float(value)
                for name, value in metrics.compute().items()
            }
            figures |= by_source.compute()
        # A model that predicts in evaluation, and whose task knows no loss of that, has none.
        [without] = world.sum(float(not has_loss))
        return figures if without else {"loss": loss_sum.item() / all_rows, **figures}
    finally:
        restore_random_states(before)


class SourceMetrics:
    """The metrics of each source's rows, beside those of all; nothing where there is no mix.

    Args:
        task: Makes metrics, and adds rows to them.
        loader: Gives the batches; knows the names of the sources.
        world: The ranks.
    """

    def __init__(self, task: Task, loader: Any, world: World) -> None:
        self._names = loader.classes_of("source") or ()
        self._metrics = [task.metrics().to(world.device) for _ in self._names]
        self._rows = [0] * len(self._names)
        self._task = task
        self._world = world

    def update(self, outputs: Any, batch: Batch) -> None:
        """Add the valid rows of a batch to those of their sources."""
        if "source" not in batch:  # no mix, or left out by a collate
            return
        valid = [batch["valid"] & (batch["source"] == n) for n in range(len(self._metrics))]
        counts = (
            torch.stack(valid).sum(1).tolist() if valid else []
        )  # the device is waited for once
        for number, (metrics, rows) in enumerate(zip(self._metrics, counts, strict=True)):
            self._rows[number] += rows
            if rows:
                of_source = {**batch, "valid": valid[number], "num_valid": rows}
                self._task.update(metrics, outputs, of_source)

    def compute(self) -> dict[str, float]:
        """``<source>/<figure>`` of every source that has rows on any rank."""
        figures: dict[str, float] = {}
        rows = self._world.sum(*self._rows) if self._rows else []
        for name, metrics, count in zip(self._names, self._metrics, rows, strict=True):
            if count:
                computed = metrics.compute().items()
                figures |= {f"{name}/{figure}": float(value) for figure, value in computed}
        return figures


def class_tasks(task: Task) -> dict[str, ClassTask]:
    """The tasks whose figures can be told by class: of several by name, else under no name."""
    tasks = task.tasks if isinstance(task, TaskGroup) else {"": task}
    return {name: each for name, each in tasks.items() if isinstance(each, ClassTask)}


def warn_of_sizes(
    trained: tuple[int, int] | None, evaluated: tuple[int, int] | None, steps: Mapping[str, Any]
) -> None:
    """Log a warning if evaluation has images of another size than training.

    Args:
        trained: The size in training; None if unknown, or if it varies.
        evaluated: The size in evaluation; None if unknown, or if it varies.
        steps: The config's ``augment.eval``.
    """
    if trained is None or evaluated is None or tuple(trained) == tuple(evaluated):
        return
    _log.warning(
        "the model is trained on images of %d x %d (height x width) and evaluated on images of "
        "%d x %d; to evaluate at the size of training, %s",
        *trained,
        *evaluated,
        _remedy(trained, steps),
    )


def _remedy(size: tuple[int, int], steps: Mapping[str, Any]) -> str:
    """Name the keys of the last step that sets an image size."""
    high, wide = size
    for name, step in reversed(ordered_steps(steps).items()):
        key = f"augment.eval.{name}"
        if {"height", "width"} <= step.keys():
            return f"type {key}.height={high} {key}.width={wide}"
        if isinstance(step.get("size"), int | list | tuple):
            return f"type '{key}.size=[{high},{wide}]'"
    return "give augment.eval a step that resizes to it"
