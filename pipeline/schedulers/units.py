"""Tell in which unit a schedule counts, steps or epochs, and which figures are to fall."""

from __future__ import annotations

import inspect
from collections.abc import Collection, Mapping
from typing import Any, Literal

from penstock.core import registry

Interval = Literal["step", "epoch"]

_OF_TORCH = "torch.optim.lr_scheduler."
_BY_STEP = (f"{_OF_TORCH}CyclicLR", f"{_OF_TORCH}OneCycleLR")
PLATEAU = f"{_OF_TORCH}ReduceLROnPlateau"


def own_interval(target: str) -> Interval:
    """Tell in what a schedule counts by itself.

    One that is registered says so by what it asks for, ``total_steps`` or ``total_epochs``. Those
    of torch count epochs, but for the two whose documentation steps them after every batch.

    Args:
        target: Its ``_target_``.
    """
    if target.startswith(_OF_TORCH):
        return "step" if target in _BY_STEP else "epoch"
    return "epoch" if "total_epochs" in _asked(target) else "step"


def _asked(target: str) -> Collection[str]:
    """Name what a registered schedule takes."""
    component = registry.find(target)
    return inspect.signature(component.target).parameters if component else ()


def depends_on_length(config: Mapping[str, Any]) -> bool:
    """Tell whether a run's schedule is another one when the run is longer."""
    node = config.get("scheduler")
    if not node:
        return False
    if 0 < node.get("warmup", 0) < 1:
        return True
    target = node["_target_"]
    asked = ["total_steps"] if target == f"{_OF_TORCH}OneCycleLR" else _asked(target)
    return any(name in asked and name not in node for name in ("total_steps", "total_epochs"))


def takes_interval(target: str, interval: Interval) -> bool:
    """Whether a schedule can be stepped so: no plateau by steps, none of epochs by steps."""
    if target.startswith(_OF_TORCH):
        return interval == "epoch" or target != PLATEAU
    return interval == "epoch" or own_interval(target) == "step"


def better(figure: str) -> Literal["max", "min"]:
    """Tell whether more or less of a figure is better, by its name: less of losses."""
    return "min" if figure.endswith("loss") else "max"


def rank(value: float | None, mode: Literal["max", "min"]) -> tuple[bool, float]:
    """Give a figure its place in a list, the best first; what is no number comes last."""
    if value is None or value != value:
        return True, 0.0
    return False, -value if mode == "max" else value


def interval_of(config: Mapping[str, Any]) -> Interval:
    """Tell in what a run's schedule counts: as the trainer says, else in its own unit."""
    target = (config.get("scheduler") or {}).get("_target_", "scheduler/none")
    return config["trainer"].get("scheduler_interval") or own_interval(target)
