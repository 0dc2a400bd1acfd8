"""Build the objects that training works on."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

from penstock.core.contracts import Task
from penstock.core.user_errors import listing
from penstock.datasets.streams.dataset import LaneStreamDataset
from penstock.pipeline.build import build_callbacks, build_device_transforms, build_loader
from penstock.pipeline.learning.building import (
    build_model,
    build_optimizer,
    build_scheduler,
    build_task,
    build_warmup,
    fitted_tasks,
)
from penstock.pipeline.learning.fields import task_field
from penstock.pipeline.learning.parameters import freeze
from penstock.pipeline.learning.weights import Weights, take_weights
from penstock.pipeline.loader.device.queue import DeviceQueue
from penstock.pipeline.mixes import sources_of
from penstock.pipeline.schedulers.units import Interval, better, depends_on_length, interval_of
from penstock.pipeline.schedulers.warmup import Warmup
from penstock.pipeline.training.distributed.strategy import Strategy
from penstock.pipeline.training.distributed.world import World
from penstock.pipeline.training.given_values import GivenValues, given_values, values_of
from penstock.pipeline.training.hooks import Hooks
from penstock.pipeline.training.run_folder import keep_initial, kept_figures, settled
from penstock.pipeline.training.settings import TrainerSettings, monitored, no_such_figure


@dataclass(frozen=True, slots=True, kw_only=True)
class Parts:
    """The objects that training works on.

    Attributes:
        model: On its device, not wrapped.
        shared: What training calls: the model, with gradients averaged over the ranks.
        strategy: How the ranks share it.
        task: Losses and metrics.
        optimizer: Over the model's parameters.
        scheduler: A learning-rate schedule, or None for a constant rate.
        interval: Whether the schedule is stepped after a step of the optimizer or an epoch.
        warmup: What the rates of the first steps are lowered by.
        given: What optimizer and schedule began with.
        hooks: Calls the callbacks.
        scaler: Scales the loss for fp16; does nothing in other precisions.
        train: Batches to train on.
        val: Batches to validate on, or None.
        num_batches: Batches of a training epoch, or None if unknown.
        class_names: The classes of what is predicted, or None.
        still: Norms that are frozen, whose running figures stay as they are.
        held: Is told how many records of the epoch a checkpoint holds, of a queue.
        eval_steps: The config's ``augment.eval``.
    """

    model: nn.Module
    shared: nn.Module
    strategy: Strategy
    task: Task
    optimizer: Optimizer
    scheduler: Any
    interval: Interval
    warmup: Warmup
    given: GivenValues
    hooks: Hooks
    scaler: torch.amp.GradScaler
    train: DeviceQueue
    val: DeviceQueue | None
    num_batches: int | None
    class_names: tuple[str, ...] | None = None
    still: tuple[nn.Module, ...] = ()
    held: Callable[[int], None] | None = None
    eval_steps: Mapping[str, Any] = field(default_factory=dict)

    def lr(self, step: int) -> float:
        """The learning rate of a step, counted from 0 (of the first group of parameters)."""
        return float(self.optimizer.param_groups[0]["lr"]) * self.warmup.share(step)


def build_parts(
    config: Mapping[str, Any],
    settings: TrainerSettings,
    world: World,
    strategy: Strategy,
    run_dir: Path,
    stack: ExitStack,
    *,
    begins: bool = True,
    initial: Weights | None = None,
) -> Parts:
    """Build everything that training works on, in the order in which data flows.

    Args:
        config: Plain and checked.
        settings: The trainer's settings.
        world: The ranks.
        strategy: How they share the model.
        run_dir: The run's folder.
        stack: Closes the loaders.
        begins: False: a checkpoint has the weights.
        initial: Weights that the model begins with; None: as drawn.
    """
    config = world.on_main(lambda: settled(config, run_dir))

    def open_loader(split: Any, device: torch.device | None) -> Any:
        loader = build_loader(
            config, split, rank=world.rank, world_size=world.size, run_dir=run_dir, device=device,
            limit=settings.limit_val_batches,
        )  # fmt: skip
        stack.callback(loader.close)
        return loader

    def on_device(loader: Any, split: Any, device: torch.device | None) -> DeviceQueue:
        transforms = build_device_transforms(config, split, device)
        return DeviceQueue(loader, world.device, transforms)

    train = open_loader("train", world.device)
    train.start()  # workers start while the model is built
    # What is learned by heart is validated on too, with the steps of validation.
    by_heart = settings.overfit_batches is not None
    val_device = None if by_heart else world.device
    val = None
    if settings.validate_every:
        val = open_loader("train" if by_heart else "val", val_device)
    class_names = train.classes_of(task_field(config))
    num_classes = len(class_names or ())
    names = () if val is None else val.classes_of(task_field(config)) or ()
    if class_names and names != class_names[: len(names)]:
        raise ValueError(
            f"dataset: validation has the classes {listing(names)}, expected those of training in "
            f"their order, {listing(class_names)}; give both the same class ids"
        )

    model = build_model(
        config, num_classes, table=train.table, classes_of=train.classes_of, begins=begins
    )
    memory_format = torch.channels_last if settings.channels_last else torch.preserve_format
    if initial is not None:
        taken = take_weights(model, initial)
        world.on_main(lambda: keep_initial(run_dir, taken.as_json()))
        taken.tell()
    still = freeze(model, settings.freeze or ())
    model = model.to(device=world.device, memory_format=memory_format)  # type: ignore[call-overload]
    shared = strategy.share(model)
    optimizer = build_optimizer(config, model)
    groups = values_of(optimizer)
    num_batches = _num_batches(train, settings)
    interval = interval_of(config)
    steps = _steps(num_batches, settings)
    warmup = build_warmup(config, steps)
    total_steps = settings.max_epochs if interval == "epoch" else steps
    scheduled = total_steps
    if interval == "step" and steps is not None:  # it begins when the rate has risen
        scheduled = max(1, steps - warmup.steps)
    task = build_task(
        config, num_classes, class_names, table=train.table, classes_of=train.classes_of
    )
    figures = world.on_main(lambda: kept_figures(task, train.dataset, run_dir))
    for name, each in fitted_tasks(task).items():
        each.learn(figures[name])
    watched = monitored(settings, task.metrics())
    mode = settings.monitor_mode or better(watched)
    scheduler = build_scheduler(config, optimizer, scheduled, better=mode)
    callbacks = build_callbacks(
        config, model=model, run_dir=run_dir, rank=world.rank, watched=watched,
        higher=mode == "max",
    )  # fmt: skip
    schedule = {
        "scheduler": config.get("scheduler"),
        "total_steps": total_steps if depends_on_length(config) else None,
        "interval": interval,
        "warmup": warmup.steps,
    }
    validates = val is not None and num_batches_of(val) != 0
    return Parts(
        model=model,
        shared=shared,
        strategy=strategy,
        task=task,
        optimizer=optimizer,
        scheduler=scheduler,
        interval=interval,
        warmup=warmup,
        given=given_values(groups, scheduler, schedule),
        hooks=Hooks(callbacks, world),
        scaler=torch.amp.GradScaler(world.device.type, enabled=settings.amp == "fp16"),
        train=on_device(train, "train", world.device),
        val=on_device(val, "val", val_device) if validates else None,
        num_batches=num_batches,
        class_names=class_names or train.class_names,
        still=still,
        held=_held(train.dataset),
        eval_steps=(config.get("augment") or {}).get("eval") or {},
    )


def _held(dataset: Any) -> Callable[[int], None] | None:
    return dataset.source.acknowledge if isinstance(dataset, LaneStreamDataset) else None


_STAND_INS = ("*",) * 1000


def check_monitor(config: Mapping[str, Any], settings: TrainerSettings) -> None:
    """Refuse to watch a figure that the task does not give, before any data is read.

    The task is asked what it gives for classes that stand in for those of the data. One that
    cannot say it without data is asked by the first validation.

    Raises:
        ValueError: It gives no such figure.
    """
    figures = None if settings.monitor is None else figures_of(config)
    if figures is None:
        return
    name = monitored(settings, figures)
    if not any(fnmatchcase(name, figure) for figure in figures):
        raise ValueError(no_such_figure(settings, figures))


def figures_of(config: Mapping[str, Any]) -> set[str] | None:
    """Ask the task which figures it gives, without any data; None where it cannot say it so."""
    try:
        task = build_task(config, len(_STAND_INS), _STAND_INS, classes_of=lambda field: _STAND_INS)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # nothing was added to them
            figures = {*task.metrics().compute()}
    except Exception:  # whatever a component of the user's, or a library, says of stand-ins
        return None
    return figures | {f"*/{name}" for name in figures if sources_of(config)} | {"loss"}


def num_batches_of(loader: Any) -> int | None:
    """Count a loader's batches; None for a stream of unknown length."""
    try:
        return len(loader)
    except TypeError:
        return None


def _num_batches(loader: Any, settings: TrainerSettings) -> int | None:
    """Batches that an epoch trains on; None for a stream of unknown length."""
    length, limit = num_batches_of(loader), settings.train_batches
    if length == 0:
        raise ValueError(
            f"training has no batches: the data is smaller than loader.batch_size "
            f"({loader.batch_size}); lower it, or set loader.drop_last=false"
        )
    return length if limit is None or length is None else min(limit, length)


def _steps(num_batches: int | None, settings: TrainerSettings) -> int | None:
    """Count the optimizer's steps of the whole run; None if unknown."""
    if num_batches is None or settings.max_epochs is None:
        return settings.max_steps
    steps = settings.max_epochs * -(-num_batches // settings.accumulate)
    return min(steps, settings.max_steps or steps)
