"""Raise the learning rate at the beginning of a run, whatever its schedule."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

from annotated_types import Ge

from penstock.core.registry import register

if TYPE_CHECKING:
    from torch.optim import Optimizer


@register("settings", "warmup")
@dataclass(frozen=True, slots=True, kw_only=True)
class WarmupSettings:
    """What stands among the arguments of every schedule.

    Attributes:
        warmup: Share of the run, below 1, or number of the optimizer's steps, in which the rate
            rises to where the schedule has it. A schedule that counts steps begins behind them.
    """

    warmup: Annotated[float, Ge(0)] = 0.0

    def __post_init__(self) -> None:
        """Raises ValueError for what is neither a share nor a number of steps."""
        if self.warmup > 1 and self.warmup != int(self.warmup):
            raise ValueError(
                f"scheduler.warmup is {self.warmup}, neither a share of the run below 1 nor a "
                f"number of steps; type scheduler.warmup={int(self.warmup)}"
            )

    def over(self, total_steps: int | None) -> Warmup:
        """The warm-up of a run of so many steps; None: unknown.

        Raises:
            ValueError: It is a share of what is not known.
        """
        if not 0 < self.warmup < 1:
            return Warmup(int(self.warmup))
        if total_steps is None:
            raise ValueError(
                f"scheduler.warmup is {self.warmup}, a share of the run, and the number of steps "
                f"is unknown, since the data is a stream without a length; give steps, such as "
                f"scheduler.warmup=500, or set trainer.max_steps"
            )
        return Warmup(round(self.warmup * total_steps))


@dataclass(frozen=True, slots=True)
class Warmup:
    """A linear rise of the rate, a function of the step alone: a resume has nothing to restore.

    Attributes:
        steps: Optimizer steps of less than the whole rate.
    """

    steps: int

    def share(self, step: int) -> float:
        """The share of the schedule's rate that a step has, counted from 0."""
        return min(1.0, (step + 1) / (self.steps + 1))

    @contextmanager
    def at(self, step: int, optimizer: Optimizer) -> Iterator[None]:
        """Have the rates of a step in the optimizer, and those of the schedule again behind it."""
        share, rates = self.share(step), [group["lr"] for group in optimizer.param_groups]
        if share == 1:  # the same number, whatever kind of number it is
            yield
            return
        for group, rate in zip(optimizer.param_groups, rates, strict=True):
            group["lr"] = rate * share
        yield
        for group, rate in zip(optimizer.param_groups, rates, strict=True):
            group["lr"] = rate
