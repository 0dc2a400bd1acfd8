"""Hugging Face datasets: an Arrow file of encoded images, transformed in DataLoader's workers.

The package has the name of ours, so this module runs where the repository's root is not on the
path: a process of its own, whose path begins with this folder's parent.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from datasets import Dataset, Features, Value, load_from_disk
from rows import Work
from rows.photo import load, one_thread_each

LIBRARIES = ("datasets", "torch", "cv2")
DISTRIBUTIONS = ("datasets",)


def prepare(work: Work, option: str) -> None:
    """An Arrow file of the files' bytes."""

    def rows() -> Iterator[dict[str, Any]]:
        for path in work.files:
            yield {"image": Path(path).read_bytes()}

    features = Features({"image": Value("binary")})
    cache = f"{work.prepared}.cache"
    data = Dataset.from_generator(rows, features=features, cache_dir=cache)
    data.save_to_disk(work.prepared)


def open_batches(work: Work, option: str) -> Callable[[], Iterator[Any]]:
    """`set_transform` on batches of rows, memory-mapped."""
    from torch.utils.data import DataLoader

    def transform(rows: dict[str, list[bytes]]) -> dict[str, list[Any]]:
        return {"image": [load(data, work.decoder, work.size) for data in rows["image"]]}

    data: Any = load_from_disk(work.prepared)
    data.set_transform(transform)
    loader: Any = DataLoader(
        data, batch_size=work.batch_size, shuffle=True, drop_last=True,
        num_workers=work.workers, persistent_workers=True, worker_init_fn=one_thread_each,
    )  # fmt: skip
    return lambda: iter(loader)
