"""Lower the learning rate by a half cosine."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Annotated

from annotated_types import Ge, Le

from penstock.core.registry import register

if TYPE_CHECKING:
    from torch.optim import Optimizer
    from torch.optim.lr_scheduler import LambdaLR


@register("scheduler", "cosine")
def cosine(
    *,
    optimizer: Optimizer,
    total_steps: int | None,
    final: Annotated[float, Ge(0), Le(1)] = 0.0,
) -> LambdaLR:
    """A half cosine down to the end of the run.

    Loshchilov and Hutter, "SGDR", ICLR 2017, without restarts.

    Args:
        optimizer: Its learning rates are the peak.
        total_steps: Steps of the whole run, or epochs where trainer.scheduler_interval is epoch.
        final: Rate at the end, as a share of the peak.

    Raises:
        ValueError: The run's length is unknown.
    """
    from torch.optim.lr_scheduler import LambdaLR

    if total_steps is None:
        raise ValueError(
            "scheduler cosine: the number of steps is unknown, since the data is a stream "
            "without a length; set trainer.max_steps, or take scheduler=none"
        )
    length = max(1, total_steps)

    def factor(step: int) -> float:
        share = min(1.0, step / length)
        return final + (1 - final) * (1 + math.cos(math.pi * share)) / 2

    return LambdaLR(optimizer, factor)
