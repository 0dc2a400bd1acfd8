"""Compute the scalar that is trained on, and the losses that torch lacks."""

from __future__ import annotations

from typing import Any

import torch
from torch.nn import functional

from penstock.core.contracts import Task
from penstock.core.sample import Batch


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


_NEVER = 1e6  # farther than any point lies


def batch_hard(
    features: torch.Tensor, identities: torch.Tensor, valid: torch.Tensor, *, margin: float | None
) -> torch.Tensor:
    """For each row, how much nearer its farthest equal is to be than its nearest other.

    Hermans, Beyer and Leibe, "In Defense of the Triplet Loss for Person Re-Identification",
    arXiv:1703.07737, section 2: batch hard, with Euclidean distances.

    Args:
        features: float [B, D].
        identities: int64 [B].
        valid: bool [B]; a row that is not is in no triplet.
        margin: By how much; None: the soft margin, log(1 + exp(.)).

    Returns:
        float32 [B]; 0 for a row that is not valid, or that lacks an equal or another.
    """
    with torch.autocast(features.device.type, enabled=False):
        # Taken out and not weighed with 0: what is infinite in padding must not turn into a NaN.
        rows = features.float().where(valid[:, None], features.new_zeros((), dtype=torch.float32))
        squares = rows.square().sum(1)
        distances = squares[:, None] + squares[None] - 2 * (rows @ rows.T)
        # The root has no slope at 0, where a row is compared with its like.
        distances = distances.clamp(min=1e-12).sqrt()
    both = valid[:, None] & valid[None]
    alike = identities[:, None] == identities[None]
    itself = torch.eye(len(rows), dtype=torch.bool, device=rows.device)
    equal, other = both & alike & ~itself, both & ~alike
    farthest = distances.masked_fill(~equal, -_NEVER).amax(1)
    nearest = distances.masked_fill(~other, _NEVER).amin(1)
    excess = farthest - nearest
    losses = functional.softplus(excess) if margin is None else functional.relu(excess + margin)
    return losses.where(equal.any(1) & other.any(1), losses.new_zeros(()))
