"""Config to what learns: model, task, optimizer and schedule."""

from __future__ import annotations

import inspect
import logging
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, Literal

from penstock.pipeline.build import Config, build
from penstock.pipeline.config.combinations import (
    ClassesOf,
    field_of,
    tasks_of,
    without_weights,
)
from penstock.pipeline.config.targets import resolve_target
from penstock.pipeline.schedulers.units import PLATEAU

if TYPE_CHECKING:
    from torch import nn
    from torch.optim import Optimizer
    from torch.optim.lr_scheduler import LRScheduler

    from penstock.core.contracts import Task

_log = logging.getLogger(__name__)


def build_model(
    config: Config,
    num_classes: int,
    *,
    table: Any = None,
    classes_of: ClassesOf | None = None,
    begins: bool = True,
) -> nn.Module:
    """Build the model, on the CPU, with weights drawn from torch's global generator.

    Args:
        config: The config.
        num_classes: Classes of the task's field; 0: none.
        table: What is known of a table's columns, ``loader.table``.
        classes_of: Names of the classes of a field, ``loader.classes_of``.
        begins: False: a checkpoint has all of its weights, so that no others are looked for.

    Returns:
        The model; one whose `forward` takes images, as torch's own do, is fed with the batch's.
    """
    from penstock.pipeline.learning.networks import taking_batches

    fields = {name: field_of(task) for name, task in tasks_of(config).items()}
    known = {name: (f, len((classes_of and classes_of(f)) or ())) for name, f in fields.items()}
    node = config["model"] if begins else without_weights(config["model"])
    if isinstance(own := node.get("module"), Mapping) and "_target_" in own:
        given = {"num_classes", "_args_"} & own.keys() or not num_classes
        own = build(own) if given else _told_classes(own, num_classes)
        node = {**node, "module": own}
    return taking_batches(_told_classes(node, num_classes, table=table, task_fields=known))


def _told_classes(node: Config, num_classes: int, **known: Any) -> Any:
    """Build a model that is told the classes, also where it would take any argument.

    One of ``**kwargs`` may hand them on, as those of timm do, to what takes none.
    """
    accepted = inspect.signature(resolve_target(node["_target_"])).parameters
    takes_any = any(each.kind is each.VAR_KEYWORD for each in accepted.values())
    if num_classes and takes_any and "num_classes" not in accepted:
        import torch

        drawn = torch.get_rng_state()
        try:
            return build({**node, "num_classes": num_classes}, **known)
        except (TypeError, ValueError) as error:
            if "num_classes" not in str(error):
                raise
            torch.set_rng_state(drawn)  # layers may have been made
        name = node["_target_"]
        _log.warning("%s takes no num_classes, and the data has %d", name, num_classes)
    return build(node, num_classes=num_classes, **known)


def build_task(
    config: Config,
    num_classes: int,
    class_names: tuple[str, ...] | None,
    *,
    table: Any = None,
    classes_of: ClassesOf | None = None,
) -> Task:
    """Build losses and metrics, of several tasks each told its own classes; see `build_model`."""
    node = config["task"]
    if "tasks" not in node:
        return build(node, num_classes=num_classes, class_names=class_names, table=table)
    tasks = {}
    for name, task in tasks_of(config).items():
        names = classes_of(field_of(task)) if classes_of is not None else None
        tasks[name] = build(task, num_classes=len(names or ()), class_names=names, table=table)
    return build({key: value for key, value in node.items() if key != "tasks"}, tasks=tasks)


def build_optimizer(config: Config, params: Iterable[Any]) -> Optimizer:
    """Build the optimizer over `params`."""
    return build(config["optimizer"], params=params)


def build_scheduler(
    config: Config,
    optimizer: Optimizer,
    total_steps: int | None,
    *,
    better: Literal["max", "min"] = "min",
) -> LRScheduler | None:
    """Build the learning-rate schedule, or None for a constant rate.

    Args:
        config: A checked config.
        optimizer: Its rates are scheduled.
        total_steps: How often the schedule will be stepped; None: unknown.
        better: Whether more or less is better of the figure that a plateau is looked for in.
    """
    node = config["scheduler"]
    if not node:
        return None
    if node["_target_"] == PLATEAU:
        node = {"mode": better, **node}
    known = {"total_steps": total_steps, "total_epochs": total_steps}
    return build(node, optimizer=optimizer, **known)
