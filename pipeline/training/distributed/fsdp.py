"""Every rank holds a part of each weight: torch's `fully_shard`, known as FSDP2."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext

import torch
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Shard
from torch.distributed.tensor import empty as empty_shards

from penstock.pipeline.training.distributed.strategy import Strategy
from penstock.pipeline.training.distributed.world import World


class FullyShardedDataParallel(Strategy):
    """A part of each weight, of its gradient and of what the optimizer keeps for it, on each rank.

    The weights of a block are gathered when it is computed, and let go after that.
    """

    shards = True

    def __init__(self, world: World) -> None:
        self._mesh = init_device_mesh(world.device.type, (world.size,))

    def share(self, model: nn.Module) -> nn.Module:
        """Shard the model in place; it stays what is called."""
        # Also the last block's, and those outside of blocks, go when they are computed: what is
        # there after an evaluation is what an optimizer, a callback or a checkpoint knows.
        for block in [*_blocks(model), model]:
            fully_shard(block, mesh=self._mesh, reshard_after_forward=True)
        return model

    def apart(self, shared: nn.Module) -> AbstractContextManager[object]:
        """Average at once all the same: whole gradients would take the room that is saved."""
        return nullcontext()

    def local(self, tensor: torch.Tensor) -> torch.Tensor:
        """Return this rank's shard."""
        return tensor.to_local() if isinstance(tensor, DTensor) else tensor

    def empty(self, size: Sequence[int], *, dtype: torch.dtype) -> torch.Tensor:
        """Make room for this rank's part."""
        return empty_shards(*size, dtype=dtype, device_mesh=self._mesh, placements=[Shard(0)])


def _blocks(model: nn.Module) -> Iterator[nn.Module]:
    """Yield what is gathered together: the children of the model's outermost lists and sequences.

    One that has a weight together with something outside of it is left to the whole.
    """
    uses = _uses(model)

    def within(module: nn.Module) -> Iterator[nn.Module]:
        for child in module.children():
            own = _uses(child)
            repeats = isinstance(module, nn.Sequential | nn.ModuleList)
            # A list is no step of a forward pass.
            is_step = not isinstance(child, nn.ModuleList | nn.ModuleDict)
            if repeats and is_step and own and all(uses[key] == own[key] for key in own):
                yield child
            else:
                yield from within(child)

    return within(model)


def _uses(module: nn.Module) -> Counter[int]:
    """Count the names of each weight."""
    return Counter(id(weight) for _, weight in module.named_parameters(remove_duplicate=False))
