"""torchdata nodes: batches of indices, mapped by threads."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from rows import Work
from rows.photo import load_files, one_thread_each

LIBRARIES = ("torchdata.nodes", "torch", "cv2")
DISTRIBUTIONS = ("torchdata",)


def open_batches(work: Work, option: str) -> Callable[[], Iterator[Any]]:
    """The chain of its guide from DataLoader: sampler, batcher, parallel mapper, prefetcher."""
    import torch
    from torch.utils.data import RandomSampler
    from torchdata.nodes import Batcher, Loader, ParallelMapper, Prefetcher, SamplerWrapper

    one_thread_each()
    files = work.files

    def load_batch(indices: list[int]) -> Any:
        return torch.from_numpy(load_files([files[i] for i in indices], work.decoder, work.size))

    node: Any = Batcher(SamplerWrapper(RandomSampler(files)), work.batch_size, drop_last=True)
    node = ParallelMapper(node, load_batch, num_workers=work.workers, method="thread")
    loader: Any = Loader(Prefetcher(node, prefetch_factor=2))
    return lambda: iter(loader)
