"""Config to what learns from the batches: model, task, optimizer, schedule and loggers."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pipeline.config.objects import build
from pipeline.config.task_fields import ClassesOf, field_of, tasks_of

if TYPE_CHECKING:
    from torch import nn
    from torch.optim import Optimizer
    from torch.optim.lr_scheduler import LRScheduler

    from datasets.protocols import Logger, Task

Config = Mapping[str, Any]


def build_model(
    config: Config, num_classes: int, *, table: Any = None, classes_of: ClassesOf | None = None
) -> nn.Module:
    """The model, on the CPU, with weights drawn from torch's global generator.

    Args:
        config: The config.
        num_classes: Classes of the task's field; 0: none.
        table: What is known of a table's columns, ``loader.table``.
        classes_of: Names of the classes of a field, ``loader.classes_of``.
    """
    fields = {name: field_of(task) for name, task in tasks_of(config).items()}
    known = {name: (f, len((classes_of and classes_of(f)) or ())) for name, f in fields.items()}
    return build(config["model"], num_classes=num_classes, table=table, task_fields=known)


def build_task(
    config: Config,
    num_classes: int,
    class_names: tuple[str, ...] | None,
    *,
    table: Any = None,
    classes_of: ClassesOf | None = None,
) -> Task:
    """Losses and metrics, of several tasks each told its own classes; see `build_model`."""
    node = config["task"]
    if "tasks" not in node:
        return build(node, num_classes=num_classes, class_names=class_names, table=table)
    tasks = {}
    for name, task in tasks_of(config).items():
        names = classes_of(field_of(task)) if classes_of is not None else None
        tasks[name] = build(task, num_classes=len(names or ()), class_names=names, table=table)
    return build({key: value for key, value in node.items() if key != "tasks"}, tasks=tasks)


def build_optimizer(config: Config, params: Iterable[Any]) -> Optimizer:
    """The optimizer over `params`."""
    return build(config["optimizer"], params=params)


def build_scheduler(
    config: Config, optimizer: Optimizer, total_steps: int | None
) -> LRScheduler | None:
    """The learning-rate schedule, or None for a constant rate."""
    if not config["scheduler"]:
        return None
    return build(config["scheduler"], optimizer=optimizer, total_steps=total_steps)


def build_loggers(config: Config, run_dir: Path) -> list[Logger]:
    """The loggers, by their order in the config."""
    nodes = [node for node in config["logger"].values() if node]
    return [build(node, run_dir=run_dir, config=config) for node in nodes]
