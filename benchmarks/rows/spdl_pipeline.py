"""SPDL: a pipeline of threads, a task per image or per batch, decoding by OpenCV."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

from rows import Work
from rows.photo import load_file, load_files, one_thread_each

LIBRARIES = ("spdl.pipeline", "numpy", "cv2")
DISTRIBUTIONS = ("spdl-core", "spdl-io")


def open_batches(work: Work, option: str) -> Callable[[], Iterator[Any]]:
    """A pipeline for each epoch, as its examples build it."""
    import numpy as np
    from spdl.pipeline import PipelineBuilder

    one_thread_each()
    files, size = work.files, work.batch_size

    def paths() -> Iterator[str]:
        yield from random.sample(files, len(files))

    def batches_of_paths() -> Iterator[list[str]]:
        order = random.sample(files, len(files))
        for at in range(0, len(order) - size + 1, size):
            yield order[at : at + size]

    def epoch() -> Iterator[Any]:
        arguments: dict[str, Any] = {"decoder": work.decoder, "size": work.size}
        if option == "image":
            builder = PipelineBuilder().add_source(paths())
            builder.pipe(partial(load_file, **arguments), concurrency=work.workers)
            builder.aggregate(size, drop_last=True).pipe(np.stack)
        else:
            builder = PipelineBuilder().add_source(batches_of_paths())
            builder.pipe(partial(load_files, **arguments), concurrency=work.workers)
        pipeline = builder.add_sink(3).build(num_threads=work.workers)
        with pipeline.auto_stop():
            yield from pipeline

    return epoch
