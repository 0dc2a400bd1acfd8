"""Keep the learning rate as it is."""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.core.registry import register

if TYPE_CHECKING:
    from torch.optim import Optimizer


@register("scheduler", "none")
def constant(*, optimizer: Optimizer) -> None:
    """The learning rate stays as the optimizer has it, however long the run is.

    Args:
        optimizer: Left alone.
    """
    del optimizer
