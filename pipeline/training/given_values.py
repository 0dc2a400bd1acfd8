"""Keep what optimizer and schedule were built with, so that a resume can take changed values."""

from __future__ import annotations

import copy
import logging
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler, ReduceLROnPlateau

_log = logging.getLogger(__name__)

Groups = list[dict[str, Any]]


@dataclass(frozen=True, slots=True)
class GivenValues:
    """Values that training begins with.

    Attributes:
        groups: The values of each group of parameters, before a schedule moved them.
        schedule: What decides the schedule, plain values; None: there is none.
        scheduler: The scheduler's state before the first step, or None.
    """

    groups: Groups
    schedule: dict[str, Any] | None
    scheduler: dict[str, Any] | None

    def state_dict(self) -> dict[str, Any]:
        """All fields."""
        return {"groups": self.groups, "schedule": self.schedule, "scheduler": self.scheduler}


def values_of(optimizer: Optimizer) -> Groups:
    """The values of each group of parameters, such as ``lr`` and ``weight_decay``."""
    return [
        {name: copy.deepcopy(value) for name, value in group.items() if name != "params"}
        for group in optimizer.param_groups
    ]


def given_values(groups: Groups, scheduler: Any, schedule: Mapping[str, Any]) -> GivenValues:
    """Take down the values that a run begins with.

    Args:
        groups: As `values_of` told before there was a scheduler.
        scheduler: Before its first step, or None.
        schedule: What decides the schedule: plain values.
    """
    if scheduler is None:
        return GivenValues(groups, None, None)
    return GivenValues(groups, dict(schedule), copy.deepcopy(scheduler.state_dict()))


def load_with_given(
    optimizer: Optimizer,
    scheduler: Any,
    content: Mapping[str, Any],
    given: GivenValues,
    *,
    count: int,
) -> None:
    """Load both from a checkpoint; what is given otherwise than to it wins.

    A schedule that follows from the count of its steps alone is run anew up to where the run
    stands, with the new values. Another one, such as that of a plateau, keeps what it has learned:
    its new arguments count from here on, and a learning rate keeps its ratio to the given one.

    Args:
        optimizer: As it was built.
        scheduler: As it was built, or None.
        content: Of the checkpoint.
        given: What both were built with.
        count: How often the scheduler was stepped until the checkpoint.

    Raises:
        ValueError: The schedule does not reach as far.
    """
    before = content.get("given") or given.state_dict()
    for new, old in zip(given.groups, before["groups"], strict=False):
        if new.get("names") != old.get("names"):
            raise ValueError("a group of the optimizer has other parameters than it had")
    if _same(before, given.state_dict()):
        optimizer.load_state_dict(content["optimizer"])
        if scheduler is not None:
            scheduler.load_state_dict(content["scheduler"])
        return
    counts = isinstance(scheduler, LRScheduler) and not isinstance(scheduler, ReduceLROnPlateau)
    if counts:
        _step_to(scheduler, count)
    elif scheduler is not None:
        changed = _changed(given.scheduler or {}, before["scheduler"])
        scheduler.load_state_dict({**content["scheduler"], **changed})
    moved = values_of(optimizer)
    optimizer.load_state_dict(content["optimizer"])
    for group, now, new, old in zip(
        optimizer.param_groups, moved, given.groups, before["groups"], strict=True
    ):
        if scheduler is not None and not counts:
            lr, before_lr = group["lr"], old["lr"]
            steady = lr == before_lr or not before_lr
            now["lr"] = new["lr"] if steady else lr * (new["lr"] / before_lr)
        group |= {"lr": now["lr"], **_changed(now, old)}
    _tell(given, before, optimizer)


def _step_to(scheduler: LRScheduler, count: int) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch expects a step of the optimizer for each
        for _ in range(count):
            scheduler.step()


def _changed(now: Mapping[str, Any], before: Mapping[str, Any]) -> dict[str, Any]:
    """The values that are others than before."""
    return {k: v for k, v in now.items() if k not in before or not _same(v, before[k])}


def _same(one: Any, other: Any) -> bool:
    return repr(_plain(one)) == repr(_plain(other))


def _plain(value: Any) -> Any:
    """A value whose `repr` tells it from others."""
    if isinstance(value, torch.Tensor):
        return value.tolist()
    if isinstance(value, Mapping):
        return {name: _plain(item) for name, item in value.items()}
    return [_plain(item) for item in value] if isinstance(value, (list, tuple)) else value


def _tell(given: GivenValues, before: Mapping[str, Any], optimizer: Optimizer) -> None:
    """Say which values are others than the checkpoint's."""
    changes = dict.fromkeys(
        f"{name}={value} (was {old.get(name)})"
        for new, old in zip(given.groups, before["groups"], strict=True)
        for name, value in _changed(new, old).items()
    )
    if changes:
        _log.info("the optimizer goes on with %s", ", ".join(changes))
    if given.schedule is None:
        return
    then, now = (
        (schedule or {}).get("total_steps") for schedule in (before["schedule"], given.schedule)
    )
    rate = float(optimizer.param_groups[0]["lr"])
    if then == now:
        _log.info("the schedule goes on with the values of the config: lr is %.4g", rate)
        return
    _log.info(
        "the schedule depends on the run's length, %s steps before and %s now: it goes on where "
        "that of %s stands, lr is %.4g; the weights are not those of a run that began with it",
        then, now, now, rate,
    )  # fmt: skip
