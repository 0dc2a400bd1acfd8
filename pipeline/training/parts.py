"""The objects that training works on."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

from datasets.protocols import Task
from pipeline.device import DevicePrefetcher
from pipeline.training.given_values import GivenValues


@dataclass(frozen=True, slots=True, kw_only=True)
class Parts:
    """The objects that training works on.

    Attributes:
        model: On its device, not wrapped.
        task: Losses and metrics.
        optimizer: Over the model's parameters.
        scheduler: A learning-rate schedule, or None for a constant rate.
        given: What optimizer and schedule began with.
        scaler: Scales the loss for fp16; does nothing in other precisions.
        train: Batches to train on.
        val: Batches to validate on, or None.
        num_batches: Batches of a training epoch, or None if unknown.
    """

    model: nn.Module
    task: Task
    optimizer: Optimizer
    scheduler: Any
    given: GivenValues
    scaler: torch.amp.GradScaler
    train: DevicePrefetcher
    val: DevicePrefetcher | None
    num_batches: int | None

    @property
    def lr(self) -> float:
        """The present learning rate (of the first group of parameters)."""
        return float(self.optimizer.param_groups[0]["lr"])
