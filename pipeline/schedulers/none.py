"""Keep the learning rate as it is."""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.core.registry import register

if TYPE_CHECKING:
    from torch.optim import Optimizer


@register("scheduler", "none")
def constant(*, optimizer: Optimizer, total_steps: int | None) -> None:
    """The learning rate stays as the optimizer has it.

    Args:
        optimizer: Left alone.
        total_steps: Not needed.
    """
    del optimizer, total_steps
