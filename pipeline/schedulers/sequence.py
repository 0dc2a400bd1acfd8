"""Put schedules one after the other."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import accumulate
from typing import TYPE_CHECKING, Annotated, Any

from annotated_types import Gt

from penstock.core.registry import register

if TYPE_CHECKING:
    from torch.optim import Optimizer
    from torch.optim.lr_scheduler import LRScheduler, SequentialLR


@register("scheduler", "sequence")
def sequence(
    *,
    optimizer: Optimizer,
    total_steps: int | None,
    schedules: Mapping[str, Any],
    lengths: Mapping[str, Annotated[float, Gt(0)]] = {},
) -> SequentialLR:
    """Schedules one after the other, each of which begins anew.

    All of them count steps, or epochs where trainer.scheduler_interval is epoch.

    Args:
        optimizer: Its learning rates are scheduled.
        total_steps: Steps of the whole run, or epochs.
        schedules: By name, in their order; null takes one away.
        lengths: How long each but the last is: a share of the run, below 1, or a count. The last
            has the rest.

    Raises:
        ValueError: There are none, a length is a share of what is unknown, or a schedule cannot
            stand among others.
    """
    from torch.optim.lr_scheduler import SequentialLR

    makers: Mapping[str, Callable[[int | None], LRScheduler]] = schedules
    if not makers:
        raise ValueError(
            "scheduler sequence: no schedules; type "
            "scheduler.schedules.<name>._target_=scheduler/cosine"
        )
    *before, last = makers
    counts = [_steps_of(name, lengths[name], total_steps) for name in before]
    rest = None if total_steps is None else max(1, total_steps - sum(counts))
    made, rates = [], [group["lr"] for group in optimizer.param_groups]
    for name, length in zip([*before, last], [*counts, rest], strict=True):
        made.append(makers[name](length))
        if [group["initial_lr"] for group in optimizer.param_groups] != rates:
            raise ValueError(
                f"scheduler.schedules.{name}: {type(made[-1]).__name__} begins from a rate of its "
                f"own, and so cannot stand among others; choose another, or take it alone"
            )
    return SequentialLR(optimizer, made, list(accumulate(counts)))


def _steps_of(name: str, length: float, total: int | None) -> int:
    if length >= 1:
        return int(length)
    if total is None:
        raise ValueError(
            f"scheduler.lengths.{name} is {length}, a share of the run, and the number of steps is "
            f"unknown; give a count, or set trainer.max_steps"
        )
    return max(1, round(length * total))
