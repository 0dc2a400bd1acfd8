"""webdataset: tar shards, batched in the workers of its WebLoader."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

from rows import Work
from rows.photo import load, one_thread_each

LIBRARIES = ("webdataset", "torch", "cv2")
DISTRIBUTIONS = ("webdataset",)
_SHARDS_PER_WORKER = 4


def prepare(work: Work, option: str) -> None:
    """Shards, several for each worker."""
    import webdataset as wds

    files = work.files
    count = -(-len(files) // (_SHARDS_PER_WORKER * work.workers))
    Path(work.prepared).mkdir()
    with wds.ShardWriter(f"{work.prepared}/%06d.tar", maxcount=count, verbose=0) as writer:
        for number, path in enumerate(files):
            writer.write({"__key__": f"{number:08d}", "jpg": Path(path).read_bytes()})


def open_batches(work: Work, option: str) -> Callable[[], Iterator[Any]]:
    """Shards shuffled, samples shuffled in a buffer, batches collated to tensors."""
    import webdataset as wds
    from torch.utils.data import default_collate

    shards = sorted(map(str, Path(work.prepared).glob("*.tar")))
    dataset = (
        wds.WebDataset(shards, shardshuffle=len(shards))
        .shuffle(1000)
        .to_tuple("jpg")
        .map_tuple(partial(load, decoder=work.decoder, size=work.size))
        .batched(work.batch_size, collation_fn=default_collate, partial=False)
    )
    loader = wds.WebLoader(
        dataset, batch_size=None, num_workers=work.workers, persistent_workers=True,
        worker_init_fn=one_thread_each,
    )  # fmt: skip
    return lambda: (batch for batch in loader)
