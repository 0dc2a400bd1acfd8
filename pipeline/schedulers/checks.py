"""Check schedules against the trainer's units and metric."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from penstock.core.registry import checks, value_at
from penstock.core.user_errors import Problem, listing, nearest
from penstock.pipeline.schedulers.units import PLATEAU, Interval, better, takes_interval

_INTERVAL = "trainer.scheduler_interval"


@checks("scheduler", PLATEAU, needs=("scheduler", "trainer.monitor", "trainer.monitor_mode"))
def unit_and_mode(config: Mapping[str, Any]) -> Iterator[Problem]:
    """Refuse to step a schedule of epochs by batches, or to lower the rate on improvement."""
    target, mode = config["scheduler"]["_target_"], config["scheduler"].get("mode")
    interval, monitor = value_at(config, _INTERVAL), value_at(config, "trainer.monitor")
    if interval and not takes_interval(target, interval):
        text = f"{interval!r} given, {target} counts epochs; type {_INTERVAL}=epoch"
        yield Problem(_INTERVAL, text)
    wanted = value_at(config, "trainer.monitor_mode") or better(monitor or "")
    if target == PLATEAU and monitor and mode in ("min", "max") and mode != wanted:
        text = f"{mode!r} given, expected {wanted!r} for {monitor!r}; leave it away"
        yield Problem("scheduler.mode", f"{text}, or type trainer.monitor_mode={mode}")


@checks("scheduler/sequence", needs=("scheduler", "scheduler.schedules", "scheduler.lengths"))
def schedules_in_sequence(config: Mapping[str, Any]) -> Iterator[Problem]:
    """Refuse missing or superfluous lengths, and schedules that depend on a metric or on epochs."""
    schedules = {name: node for name, node in config["scheduler"]["schedules"].items() if node}
    lengths, followed = config["scheduler"]["lengths"], [*schedules][:-1]
    for name in followed:
        if name not in lengths:
            key = f"scheduler.lengths.{name}"
            yield Problem(key, f"missing; type {key}=0.3, a share of the run, or a number of steps")
    for name in lengths:
        if name not in followed:
            near = nearest(name, [each for each in followed if each not in lengths])
            remedy = f"type scheduler.lengths.{near}=..." if near else f"leave {name} away"
            text = f"{lengths[name]} given, expected lengths of {listing(followed)}"
            text = f"{text}, the last schedule takes the rest; {remedy}"
            yield Problem(f"scheduler.lengths.{name}", text)
    interval: Interval = "epoch" if value_at(config, _INTERVAL) == "epoch" else "step"
    for name, node in schedules.items():
        key, target = f"scheduler.schedules.{name}", str(node.get("_target_"))
        if target in (PLATEAU, "scheduler/none", "scheduler/sequence"):
            text = f"{target} cannot be part of a sequence"
            yield Problem(key, f"{text}; type {key}._target_=scheduler/cosine")
        elif not takes_interval(target, interval):
            yield Problem(key, f"{target} counts epochs; type {_INTERVAL}=epoch")
