"""Memory that threads write batches to: reused without views, or page-locked for a GPU."""

from __future__ import annotations

import mmap
import weakref
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import cache, partial
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from penstock.pipeline.loader.contract import Delivery, mapped, to_tensor

if TYPE_CHECKING:
    import torch

    from penstock.pipeline.loader.settings import LoaderSettings

_LEAST_BYTES = 4 << 20
_MOST_FREE = 8
_BLOCK_BYTES = 31 << 20


class BatchMemory:
    """Blocks of memory, each of which is lent to one batch at a time.

    The C library keeps such large blocks in a heap for each thread, where blocks of other sizes
    lie between them: memory grows from epoch to epoch. Fresh from the system, on the other hand,
    a batch of 19 MB costs 3 ms of page faults. Here as many blocks stay as batches are alive at
    once, and eight more.

    Called from several threads.
    """

    def __init__(self) -> None:
        self._free: deque[mmap.mmap] = deque(maxlen=_MOST_FREE)
        self._lent: dict[int, tuple[weakref.ref[NDArray[np.uint8]], mmap.mmap]] = {}
        # Views end in any thread and between any two instructions. All that happens there is
        # this deque's append: Python code would need a lock, and could swallow a Ctrl-C.
        self._ended: deque[weakref.ref[NDArray[np.uint8]]] = deque()

    def allocate(self, size_bytes: int) -> NDArray[np.uint8]:
        """Writable memory, uint8 [size_bytes]; it is lent again when it and its views are gone.

        Tensors made of it keep it alive, and so do arrays made of these, and their rows.

        Raises:
            MemoryError: The system has none.
        """
        if size_bytes < _LEAST_BYTES:  # there the C library does well
            return np.empty(max(size_bytes, 1), np.uint8)
        block = self._take(size_bytes)
        if block is None:
            block = _fresh(size_bytes)
        # Views know the array that they were made of first, so that lives as long as one of them.
        array = np.frombuffer(block, np.uint8, size_bytes)
        ref = weakref.ref(array, self._ended.append)
        self._lent[id(ref)] = ref, block
        return array

    def release(self) -> None:
        """Give back what is free; what is lent goes to the system when its views are gone."""
        self._collect()
        self._lent.clear()
        self._free.clear()

    def _collect(self) -> None:
        """Take back the blocks whose views are gone."""
        with suppress(IndexError):  # none is left, or another thread took it
            while True:
                _, block = self._lent.pop(id(self._ended.popleft()), (None, None))
                if block is not None:
                    self._free.append(block)

    def _take(self, size_bytes: int) -> mmap.mmap | None:
        """The block freed last, whose pages are warm; misfits go."""
        self._collect()
        with suppress(IndexError):
            while True:
                block = self._free.pop()
                if size_bytes <= len(block) <= 2 * size_bytes:
                    return block
        return None


def _fresh(size_bytes: int) -> mmap.mmap:
    try:
        block = mmap.mmap(-1, size_bytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    except OSError as error:
        raise MemoryError(
            f"loader: no memory for the {size_bytes / 1e6:,.0f} MB of a batch's images "
            f"({error.strerror}); lower loader.batch_size, loader.prefetch_factor or "
            "loader.num_workers"
        ) from error
    with suppress(OSError):  # a kernel without large pages
        block.madvise(mmap.MADV_HUGEPAGE)
    return block


@cache
def keep_freed_memory() -> None:
    """Let blocks of up to 31 MB be used again after they are freed, rather than given back.

    Memory that is fresh from the system comes page by page, each with a fault: for a batch of
    1.5 MB that costs more than filling it, 1.9 ms in place of 0.7 ms for a batch of 512 small
    images that is taken, cropped and flipped. The C library of GNU takes blocks beyond a limit
    straight from the system and gives them straight back, and raises that limit to the largest
    block that was ever freed, up to 32 MB (mallopt(3), M_MMAP_THRESHOLD). So one block is asked
    for and freed, untouched; with other libraries that does nothing. At most twice its size
    stays with the process.
    """
    np.empty(_BLOCK_BYTES, np.uint8)


def pins(settings: LoaderSettings) -> bool:
    """Whether batches use page-locked memory: a GPU waits for them."""
    import torch

    return settings.pin_memory is not False and torch.cuda.is_available()


def pinned_memory(size_bytes: int) -> torch.Tensor:
    """Page-locked memory, uint8 [size_bytes], of torch's allocator.

    It is given out again once no tensor views it, and every copy that was issued from such a
    tensor, on whatever stream, is through.
    """
    import torch

    return torch.empty(size_bytes, dtype=torch.uint8, pin_memory=True)


def compute_pinned(
    compute: Callable[..., Sequence[Delivery | BaseException]],
) -> list[Delivery | BaseException]:
    """Compute batches with all tensors in page-locked memory.

    Images are written there at once, where the computer can; other tensors are copied.

    Args:
        compute: Gives deliveries, and perhaps an exception behind them; takes `allocate`.
    """
    blocks: list[torch.Tensor] = []

    def allocate(size_bytes: int) -> Any:
        blocks.append(pinned_memory(size_bytes))
        return blocks[-1].numpy()

    deliveries = compute(allocate=allocate)
    place = partial(_pinned, blocks=blocks)
    return [
        replace(each, batch=mapped(each.batch, place)) if isinstance(each, Delivery) else each
        for each in deliveries
    ]


def _pinned(value: Any, *, blocks: Sequence[torch.Tensor]) -> Any:
    import torch

    value = to_tensor(value)
    if not isinstance(value, torch.Tensor) or value.device.type != "cpu":
        return value
    if value.layout is torch.strided and value.is_contiguous() and value.nbytes:
        for block in blocks:
            start = value.data_ptr() - block.data_ptr()
            fits = 0 <= start <= block.numel() - value.nbytes
            if fits and not start % value.itemsize:
                # Made by way of an array, the tensor has a storage that torch's allocator does
                # not know; copies that are issued from a view of the block itself it does.
                return block[start : start + value.nbytes].view(value.dtype).view(value.shape)
    return value.pin_memory()
