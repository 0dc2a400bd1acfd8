"""torch's DataLoader over files: with PIL as most users begin, albumentations, or cv2 alone."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from typing import Any

from rows import Work
from rows.photo import draw_crop, load_file, one_thread_each

LIBRARIES = ("torch", "cv2", "albumentations", "PIL")
DISTRIBUTIONS = ("torch", "opencv-python-headless", "albumentations", "pillow")


class Photographs:
    """A map-style dataset, as in a hundred tutorials."""

    def __init__(self, work: Work) -> None:
        self.files, self.size, self.decoder = work.files, work.size, work.decoder

    def __len__(self) -> int:
        return len(self.files)

    def __getitem__(self, index: int) -> Any:
        """OpenCV alone."""
        return load_file(self.files[index], self.decoder, self.size)


class WithPillow(Photographs):
    """PIL decodes, crops and resizes, as torchvision does it."""

    def __getitem__(self, index: int) -> Any:
        """The image, uint8 [H, W, 3]."""
        import numpy as np
        from PIL import Image

        image = Image.open(self.files[index]).convert("RGB")
        left, top, width, height = draw_crop(*image.size, random.random)
        box = (left, top, left + width, top + height)
        crop = image.crop(box).resize((self.size, self.size), Image.Resampling.BILINEAR)
        if random.random() < 0.5:
            crop = crop.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
        return np.array(crop)


class WithAlbumentations(Photographs):
    """OpenCV decodes and albumentations augments."""

    stack: Any = None

    def __getitem__(self, index: int) -> Any:
        """The image, uint8 [H, W, 3]."""
        import albumentations as A
        import cv2

        if self.stack is None:
            self.stack = A.Compose([A.RandomResizedCrop((self.size,) * 2), A.HorizontalFlip(p=0.5)])
        return self.stack(image=cv2.imread(self.files[index], cv2.IMREAD_COLOR_RGB))["image"]


DATASETS = {"pil": WithPillow, "albumentations": WithAlbumentations, "cv2": Photographs}


def open_batches(work: Work, option: str) -> Callable[[], Iterator[Any]]:
    """The loader as its documentation has it, workers kept."""
    from torch.utils.data import DataLoader

    loader: Any = DataLoader(
        DATASETS[option](work),  # type: ignore[arg-type]
        batch_size=work.batch_size, shuffle=True, drop_last=True,
        num_workers=work.workers, persistent_workers=True, worker_init_fn=one_thread_each,
    )  # fmt: skip
    return lambda: iter(loader)
