"""Config to what learns: model, task, optimizer and schedule."""

from __future__ import annotations

import inspect
import logging
from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, Literal

from penstock.core.contracts import FittedTask, TaskGroup
from penstock.pipeline.config.libraries import resolve_target
from penstock.pipeline.config.places import PLACES
from penstock.pipeline.instantiate import Config, build
from penstock.pipeline.learning.fields import (
    ClassesOf,
    field_of,
    tasks_of,
    without_weights,
)
from penstock.pipeline.schedulers.units import PLATEAU

if TYPE_CHECKING:
    from torch import nn
    from torch.optim import Optimizer
    from torch.optim.lr_scheduler import LRScheduler

    from penstock.core.contracts import Task
    from penstock.pipeline.schedulers.warmup import Warmup

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


def fitted_tasks(task: Task) -> dict[str, FittedTask]:
    """List the tasks that learn figures, by name; the only one has none."""
    tasks = task.tasks if isinstance(task, TaskGroup) else {"": task}
    return {name: each for name, each in tasks.items() if isinstance(each, FittedTask)}


def build_optimizer(config: Config, model: nn.Module) -> Optimizer:
    """Build the optimizer over the parameters of a model that are trained, in their groups.

    Raises:
        ConfigError: A group has no patterns, or arguments that the optimizer does not accept.
        ValueError: A group has no parameter.
    """
    from penstock.pipeline.learning.parameters import check_groups, grouped_optimizer

    node, settings = _apart(config["optimizer"], "optimizer")
    check_groups(node["_target_"], settings.groups or {})
    return grouped_optimizer(lambda params: build(node, params=params), model, settings)


def build_warmup(config: Config, total_steps: int | None) -> Warmup:
    """Build the warm-up of a run of so many steps of the optimizer; None: unknown."""
    from penstock.pipeline.schedulers.warmup import WarmupSettings

    node = config.get("scheduler")
    settings = _apart(node, "scheduler")[1] if node else WarmupSettings()
    return settings.over(total_steps)


def _apart(node: Config, key: str) -> tuple[Config, Any]:
    """Take the settings that stand among a component's arguments apart from these."""
    settings = resolve_target(str(PLACES[key].beside))
    own = inspect.signature(resolve_target(node["_target_"])).parameters
    beside = {name: node[name] for name in inspect.signature(settings).parameters
              if name in node and name not in own}  # fmt: skip
    return {name: value for name, value in node.items() if name not in beside}, settings(**beside)


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
    if not config["scheduler"]:
        return None
    node, _ = _apart(config["scheduler"], "scheduler")
    if node["_target_"] == PLATEAU:
        node = {"mode": better, **node}
    if "schedules" not in node:
        return _schedule(node, optimizer, total_steps)
    makers = {
        name: partial(_schedule, each, optimizer)
        for name, each in node["schedules"].items() if each
    }  # fmt: skip
    return build(
        {name: value for name, value in node.items() if name != "schedules"},
        schedules=makers, optimizer=optimizer, total_steps=total_steps,
    )  # fmt: skip


def _schedule(node: Config, optimizer: Optimizer, length: int | None) -> Any:
    return build(node, optimizer=optimizer, total_steps=length, total_epochs=length)
