"""litdata: optimised chunks of encoded images, its StreamingDataLoader."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from rows import Work
from rows.photo import load, one_thread_each

LIBRARIES = ("litdata", "torch", "cv2")
DISTRIBUTIONS = ("litdata",)


def _read(path: str) -> bytes:
    return Path(path).read_bytes()


def _keep_caches_in(folder: str) -> None:
    """By default the library works in, and empties, folders below /tmp that all programs share."""
    os.environ["DATA_OPTIMIZER_CACHE_FOLDER"] = f"{folder}.cache/chunks"
    os.environ["DATA_OPTIMIZER_DATA_CACHE_FOLDER"] = f"{folder}.cache/data"


def prepare(work: Work, option: str) -> None:
    """Chunks of 64 MB, the library's own advice for streaming."""
    _keep_caches_in(work.prepared)
    import litdata

    litdata.optimize(
        _read, inputs=work.files, output_dir=work.prepared, chunk_bytes="64MB",
        num_workers=work.workers, verbose=False,
    )  # fmt: skip


def open_batches(work: Work, option: str) -> Callable[[], Iterator[Any]]:
    """The chunks read where they lie, shuffled."""
    _keep_caches_in(work.prepared)
    import litdata

    class Photographs(litdata.StreamingDataset):
        def __getitem__(self, index: Any) -> Any:
            return load(super().__getitem__(index), work.decoder, work.size)

    loader: Any = litdata.StreamingDataLoader(
        Photographs(work.prepared, shuffle=True, drop_last=True),
        batch_size=work.batch_size, num_workers=work.workers, drop_last=True,
        persistent_workers=True, worker_init_fn=one_thread_each,
    )  # fmt: skip
    return lambda: iter(loader)
