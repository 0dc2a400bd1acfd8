"""Memory that a device copies from while the program goes on, and when it may be written again."""

from __future__ import annotations

import logging
import sys
from contextlib import suppress
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    import torch

    from pipeline.loader.settings import LoaderSettings

_logger = logging.getLogger(__name__)

_PORTABLE = 1  # cudaHostRegisterPortable: page-locked for every device


class Fence(Protocol):
    """A mark in what a device is to do; ``torch.cuda.Event`` is one."""

    def query(self) -> bool:
        """Whether the device has come so far."""

    def synchronize(self) -> None:
        """Wait until it has."""


class HostMemory(Protocol):
    """Page-locked memory, in the process that copies from it."""

    def allocate(self, size_bytes: int) -> torch.Tensor:
        """Memory, uint8 [size_bytes].

        It is given out again once no tensor views it any more, and every copy that was issued
        from it, on whatever stream, is through.
        """

    def pin(self, tensor: torch.Tensor) -> torch.Tensor:
        """The tensor, copied into such memory if it lies elsewhere."""

    def register(self, address: int, size_bytes: int) -> bool:
        """Page-lock memory that is there already; False if the system refuses."""

    def unregister(self, address: int) -> None:
        """End what `register` began, once nothing is copied from there; before unmapping."""

    def fence(self) -> Fence:
        """A mark behind all that this thread has had the device do on its current stream."""


class CudaHostMemory:
    """Page-locked by CUDA.

    What is allocated comes from torch's caching allocator of page-locked memory: its slabs are
    registered once, and it knows by itself which stream copies from which slab. Registered
    memory (see `pipeline.loader.ring.slots`) torch knows nothing of; there the fence serves.
    The calls have not been tried on a GPU yet: ``pytest -m gpu`` does.
    """

    def __init__(self) -> None:
        self._said = False

    def allocate(self, size_bytes: int) -> torch.Tensor:
        """A slab of torch's allocator."""
        import torch

        return torch.empty(size_bytes, dtype=torch.uint8, pin_memory=True)

    def pin(self, tensor: torch.Tensor) -> torch.Tensor:
        """The tensor in a slab of torch's allocator."""
        return tensor.pin_memory()

    def register(self, address: int, size_bytes: int) -> bool:
        """Page-lock by ``cudaHostRegister``; a refusal is said once, and costs only speed."""
        import torch

        code = int(torch.cuda.cudart().cudaHostRegister(address, size_bytes, _PORTABLE))
        if code == 0:
            return True
        with suppress(RuntimeError):
            # CUDA keeps the error for whoever launches next. That is here, and not in the model.
            torch.ones(1, device="cuda")
        if not self._said:
            self._said = True
            _logger.warning(
                "loader: CUDA does not page-lock shared memory (error %d); batches are copied "
                "once more on their way. Often the limit is too low: raise it (ulimit -l), or "
                "set loader.pin_memory=false",
                code,
            )
        return False

    def unregister(self, address: int) -> None:
        """Wait for the device, and give back by ``cudaHostUnregister``."""
        if sys.is_finalizing():  # the process gives everything back, and torch may be gone
            return
        import torch

        with suppress(RuntimeError):  # the device failed; whoever uses it next is told
            torch.cuda.synchronize()
        torch.cuda.cudart().cudaHostUnregister(address)

    def fence(self) -> Fence:
        """An event on the current stream of this thread."""
        import torch

        event = torch.cuda.Event()
        event.record()
        return event


def host_memory(settings: LoaderSettings) -> HostMemory | None:
    """Where batches are put for copies to the device; None: ordinary memory."""
    import torch

    if settings.pin_memory is False or not torch.cuda.is_available():
        return None
    return CudaHostMemory()
