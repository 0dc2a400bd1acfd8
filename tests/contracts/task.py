"""Contract of a task: rows that are not valid count for nothing."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import nn


class Linear(nn.Linear):
    """A linear model of the field ``x``, float [B, F]."""

    def forward(self, batch: dict[str, Any]) -> torch.Tensor:  # type: ignore[override]
        return super().forward(batch["x"])


def check_task(task: Any, model: nn.Module, batch: dict[str, Any]) -> None:
    """Check that rows that are not valid change neither loss, gradient nor metrics.

    Args:
        task: The task.
        model: A model of the batch whose outputs of a row depend on that row alone.
        batch: Three rows or more, all valid.
    """
    rows = list(range(0, len(batch["valid"]), 2))
    padded = {**batch, "valid": torch.zeros_like(batch["valid"])}
    padded["valid"][rows] = True
    alone = rows_of(batch, rows)
    loss = _loss(task, model(alone), alone)
    assert loss.isfinite() and loss > 0
    torch.testing.assert_close(_loss(task, model(padded), padded), loss)
    torch.testing.assert_close(_metrics(task, model, padded), _metrics(task, model, alone))

    none = {**batch, "valid": torch.zeros_like(batch["valid"])}
    model.zero_grad()
    loss = _loss(task, model(none), none)
    loss.backward()
    assert loss.item() == 0
    assert all(p.grad is not None and not p.grad.any() for p in model.parameters())
    with torch.no_grad():
        task.update(metrics := task.metrics(), model(none), none)
    assert not any(metric.update_called for metric in metrics.values())


def _loss(task: Any, outputs: Any, batch: dict[str, Any]) -> torch.Tensor:
    """Return the sum of the losses of the model, or else of the task."""
    own = outputs if isinstance(outputs, dict) else {}
    losses = {name: value for name, value in own.items() if name.startswith("loss")}
    losses = losses or task.losses(outputs, batch)
    return losses["loss"] if "loss" in losses else torch.stack([*losses.values()]).sum()


def rows_of(batch: dict[str, Any], rows: Sequence[int]) -> dict[str, Any]:
    """Take rows of a batch."""
    return {
        name: [value[i] for i in rows] if isinstance(value, list) else value[list(rows)]
        for name, value in batch.items()
    }


@torch.no_grad()
def _metrics(task: Any, model: nn.Module, batch: dict[str, Any]) -> dict[str, torch.Tensor]:
    model.eval()
    task.update(metrics := task.metrics(), model(batch), batch)
    return metrics.compute()
