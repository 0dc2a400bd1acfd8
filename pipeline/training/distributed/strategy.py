"""Share a model among the ranks that train it, one way per file."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, ClassVar

if TYPE_CHECKING:
    import torch
    from torch import nn

    from penstock.pipeline.training.distributed.world import World


class Strategy(ABC):
    """Shares a model among ranks, each of which has its own rows of a batch.

    Args:
        world: The ranks.

    Attributes:
        shards: Whether each rank holds only a part of the weights. Then a checkpoint's tensors
            lie in shards, and ranks are a process group even where there is only one.
    """

    shards: ClassVar[bool] = False

    @abstractmethod
    def __init__(self, world: World) -> None: ...

    @abstractmethod
    def share(self, model: nn.Module) -> nn.Module:
        """Make what training calls, before there is an optimizer: it averages gradients.

        Args:
            model: The same on every rank. Its parameters from here on are what is trained.
        """

    @abstractmethod
    def apart(self, shared: nn.Module) -> AbstractContextManager[object]:
        """Leave gradients with each rank, within, where more are to be added to them."""

    def local(self, tensor: torch.Tensor) -> torch.Tensor:
        """Return this rank's part of a parameter or gradient; without shards, all of it."""
        return tensor

    @abstractmethod
    def empty(self, size: Sequence[int], *, dtype: torch.dtype) -> torch.Tensor:
        """Make room for a tensor of a checkpoint; what shards holds its part of it alone."""


def strategy_named(name: str) -> type[Strategy]:
    """Find the class of a strategy that the settings know."""
    if name == "fsdp":
        from penstock.pipeline.training.distributed.fsdp import FullyShardedDataParallel

        return FullyShardedDataParallel
    from penstock.pipeline.training.distributed.ddp import DataParallel

    return DataParallel
