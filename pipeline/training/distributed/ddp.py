"""Every rank holds the whole model, and gradients are averaged: DistributedDataParallel."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from penstock.pipeline.training.distributed.strategy import Strategy
from penstock.pipeline.training.distributed.world import World


class DataParallel(Strategy):
    """The whole model on each rank; alone, the model itself."""

    def __init__(self, world: World) -> None:
        self._world = world

    def share(self, model: nn.Module) -> nn.Module:
        """Wrap the model, where there is somebody to share it with and something to learn."""
        if self._world.size == 1 or not any(p.requires_grad for p in model.parameters()):
            return model
        device = self._world.device
        return DistributedDataParallel(
            model, device_ids=[device] if device.type == "cuda" else None
        )

    def apart(self, shared: nn.Module) -> AbstractContextManager[object]:
        """Exchange nothing within."""
        return shared.no_sync() if isinstance(shared, DistributedDataParallel) else nullcontext()

    def empty(self, size: Sequence[int], *, dtype: torch.dtype) -> torch.Tensor:
        """Make room for all of it."""
        return torch.empty(size, dtype=dtype)
