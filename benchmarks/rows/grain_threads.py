"""grain: a MapDataset read by threads, which decoding in OpenCV suits better than processes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from rows import Work
from rows.photo import load_file, one_thread_each

LIBRARIES = ("grain", "numpy", "cv2")
DISTRIBUTIONS = ("grain",)


def open_batches(work: Work, option: str) -> Callable[[], Iterator[Any]]:
    """``image``: threads read images, batched after them; ``batch``: threads make batches."""
    import grain

    one_thread_each()
    numbers = iter(range(1 << 62))

    def load(path: str, rng: Any) -> Any:
        return load_file(path, work.decoder, work.size, rng.random)

    def epoch() -> Iterator[Any]:
        data: Any = grain.MapDataset.source(work.files).seed(next(numbers)).shuffle()
        data = data.random_map(load)
        if option == "batch":
            data = data.batch(work.batch_size, drop_remainder=True)
            options = grain.ReadOptions(num_threads=work.workers, prefetch_buffer_size=4)
            return iter(data.to_iter_dataset(options))
        ahead = 2 * work.batch_size
        options = grain.ReadOptions(num_threads=work.workers, prefetch_buffer_size=ahead)
        return iter(data.to_iter_dataset(options).batch(work.batch_size, drop_remainder=True))

    return epoch
