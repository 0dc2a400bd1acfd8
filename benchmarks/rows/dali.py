"""NVIDIA DALI on the CPU: its decoder of random regions, handed over as torch tensors."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from rows import Work

LIBRARIES = ("nvidia.dali", "torch")
DISTRIBUTIONS = ("nvidia-dali-cuda120", "nvidia-dali-cuda130")


def open_batches(work: Work, option: str) -> Callable[[], Iterator[Any]]:
    """Reader, decoder, resize and flip of its ImageNet example, its iterator for torch."""
    from nvidia.dali import fn, pipeline_def, types
    from nvidia.dali.plugin.pytorch import DALIGenericIterator, LastBatchPolicy

    files = work.files

    @pipeline_def(batch_size=work.batch_size, num_threads=work.workers, device_id=None)
    def photographs() -> Any:
        encoded, _ = fn.readers.file(
            files=files, random_shuffle=True, initial_fill=len(files), name="reader"
        )
        images = fn.decoders.image_random_crop(
            encoded, device="cpu", output_type=types.RGB, random_area=[0.08, 1.0],
            random_aspect_ratio=[3 / 4, 4 / 3],
        )  # fmt: skip
        images = fn.resize(
            images, resize_x=work.size, resize_y=work.size, antialias=False,
            interp_type=types.INTERP_LINEAR,
        )  # fmt: skip
        return fn.flip(images, horizontal=fn.random.coin_flip(probability=0.5))

    pipeline: Any = photographs()
    pipeline.build()
    loader = DALIGenericIterator(
        pipeline, ["image"], reader_name="reader", auto_reset=True,
        last_batch_policy=LastBatchPolicy.DROP,
    )  # fmt: skip
    return lambda: (batch[0] for batch in loader)
