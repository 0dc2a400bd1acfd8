"""FFCV: its own file format, crops decoded by its compiled pipeline (which resizes by area)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from rows import Work

LIBRARIES = ("ffcv", "torch", "PIL")
DISTRIBUTIONS = ("ffcv", "numba")

# Arguments of RGBImageField; `recommended` is from FFCV's ImageNet example.
FIELDS: dict[str, dict[str, Any]] = {
    "jpeg": {"write_mode": "jpg", "jpeg_quality": 95},
    "recommended": {
        "write_mode": "proportion", "max_resolution": 500,
        "compress_probability": 0.5, "jpeg_quality": 90,
    },
}  # fmt: skip


class Photographs:
    """Pairs of image and label, the input of FFCV's writer."""

    def __init__(self, files: list[str]) -> None:
        self.files = files

    def __len__(self) -> int:
        return len(self.files)

    def __getitem__(self, index: int) -> tuple[Any, int]:
        """Return image and label."""
        from PIL import Image

        return Image.open(self.files[index]).convert("RGB"), 0


def prepare(work: Work, option: str) -> None:
    """Write a file of images by the library's writer."""
    from ffcv.fields import IntField, RGBImageField
    from ffcv.writer import DatasetWriter

    fields = {"image": RGBImageField(**FIELDS[option]), "label": IntField()}
    writer = DatasetWriter(work.prepared, fields, num_workers=work.workers)
    writer.from_indexed_dataset(Photographs(work.files))


def open_batches(work: Work, option: str) -> Callable[[], Iterator[Any]]:
    """Return its loader, with all data in the page cache and true shuffling."""
    from ffcv.fields.decoders import IntDecoder, RandomResizedCropRGBImageDecoder
    from ffcv.loader import Loader, OrderOption
    from ffcv.transforms import RandomHorizontalFlip, ToTensor

    crop = RandomResizedCropRGBImageDecoder((work.size, work.size))
    loader = Loader(
        work.prepared, batch_size=work.batch_size, num_workers=work.workers,
        order=OrderOption.RANDOM, os_cache=True, drop_last=True,
        pipelines={"image": [crop, RandomHorizontalFlip(), ToTensor()], "label": [IntDecoder()]},
    )  # fmt: skip
    return lambda: iter(loader)
