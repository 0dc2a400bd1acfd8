"""Batches computed into page-locked slabs of this process."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from pipeline.loader.contract import Delivery
from pipeline.loader.ring.packing import mapped

if TYPE_CHECKING:
    import torch

    from pipeline.loader.host_memory import HostMemory


def compute_into_slabs(
    compute: Callable[..., Sequence[Delivery]], memory: HostMemory
) -> list[Delivery]:
    """Compute batches whose tensors all lie in page-locked memory.

    Image rows are written there at once, where the computer can; other tensors are copied.

    Args:
        compute: Gives deliveries; takes `allocate`.
        memory: Gives slabs.

    Returns:
        The deliveries. Their tensors are views of what `memory` allocated: copies from them are
        known to it, and it does not give out again what is viewed or copied from.
    """
    slabs: list[torch.Tensor] = []

    def allocate(size_bytes: int) -> Any:
        slabs.append(memory.allocate(size_bytes))
        return slabs[-1].numpy()

    return [locked(delivery, memory, slabs) for delivery in compute(allocate=allocate)]


def locked(delivery: Delivery, memory: HostMemory, slabs: Sequence[torch.Tensor] = ()) -> Delivery:
    """A delivery with all tensors in page-locked memory, copied there if they lie elsewhere.

    Args:
        delivery: The delivery.
        memory: Gives page-locked memory.
        slabs: What `memory` allocated for it.
    """
    batch = mapped(delivery.batch, partial(_locked, slabs=slabs, memory=memory))
    return replace(delivery, batch=batch)


def _locked(value: Any, *, slabs: Sequence[torch.Tensor], memory: HostMemory) -> Any:
    import torch

    if not isinstance(value, torch.Tensor) or value.device.type != "cpu":
        return value
    if value.layout is not torch.strided or not value.is_contiguous():
        return memory.pin(value)
    for slab in slabs:
        start = value.data_ptr() - slab.data_ptr()
        fits = 0 <= start <= slab.numel() - value.nbytes
        if value.nbytes and fits and not start % value.itemsize:
            # Made by way of an array, the tensor has a storage that the slab's owner does not
            # know; a view of the slab itself says to whom it belongs.
            return slab[start : start + value.nbytes].view(value.dtype).view(value.shape)
    return memory.pin(value)
