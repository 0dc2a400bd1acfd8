"""The scalar that is trained on."""

from __future__ import annotations

from typing import Any

import torch

from datasets.protocols import Task
from datasets.sample import Batch


def total_loss(task: Task, outputs: Any, batch: Batch) -> torch.Tensor:
    """The sum of the losses: the model's own if it gives some, else the task's.

    Raises:
        ValueError: There are none.
    """
    loss = loss_if_any(task, outputs, batch)
    if loss is None:
        raise ValueError("the task gave no losses, and the model none either; one is needed")
    return loss


def loss_if_any(task: Task, outputs: Any, batch: Batch) -> torch.Tensor | None:
    """As `total_loss`; None where neither gives one, as models that predict may in evaluation.

    A model gives its own by returning a dict with keys that begin with ``loss``; a key that is
    just ``loss`` is taken for their sum.

    Returns:
        A scalar, the mean over the valid rows.
    """
    losses: dict[str, torch.Tensor] = {}
    if isinstance(outputs, dict):
        losses = {k: v for k, v in outputs.items() if k.startswith("loss") and v is not None}
        if "loss" in losses:
            losses = {"loss": losses["loss"]}
    losses = losses or task.losses(outputs, batch)
    if not losses:
        return None
    return torch.stack([loss.float() for loss in losses.values()]).sum()
