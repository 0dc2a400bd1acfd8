"""Components of torch's classes, correct and faulty, for the tests of the laws."""

from __future__ import annotations

import errno
import os
import random
from collections.abc import Iterator
from typing import Any, ClassVar

import cv2
import numpy as np
import torch
from torch import nn
from torch.utils.data import Dataset, IterableDataset, Sampler

from penstock.core.registry import register
from tests.laws.components import photos_of


class Photos(Dataset):
    """A map-style dataset that draws from all three global random states."""

    def __init__(self, root: str) -> None:
        self.files, self.targets = photos_of(root)
        self.classes = sorted({file.parent.name for file in self.files})

    def __len__(self) -> int:
        return len(self.files)

    def __getitem__(self, index: int) -> tuple[np.ndarray, int]:
        image = cv2.imread(str(self.files[index]))
        if image is None:
            raise OSError(f"cannot read {self.files[index]}")
        noise = np.random.randint(0, 9) + random.randint(0, 9) + int(torch.randint(0, 9, ()))
        return np.ascontiguousarray((image // 2 + noise)[..., ::-1]), self.targets[index]


class Growing(Sampler):
    """Batches of 1, 2, ... 9 records; later epochs begin with 4 or 7 records."""

    def __init__(self, data_source: range) -> None:
        self.data_source, self.epoch = data_source, 0

    def __len__(self) -> int:
        return 9

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __iter__(self) -> Iterator[list[int]]:
        order = torch.randperm(len(self.data_source)).tolist()
        at, size = 0, 1 + 3 * (self.epoch % 3)
        while at < len(order):
            yield order[at : at + size]
            at, size = at + size, min(size + 1, 9)


class PhotoStream(IterableDataset):
    """The same photographs as a stream without a length."""

    def __init__(self, root: str) -> None:
        self.photos = Photos(root)

    def __iter__(self):
        for index in range(len(self.photos)):
            try:
                yield self.photos[index]
            except OSError:
                yield None


@register("transform", "laws_global_noise", global_random=True)
def global_noise(sample: dict[str, Any], rng: Any) -> dict[str, Any]:
    """Draw from the global states, as registered."""
    noise = np.random.randint(0, 60) + random.randint(0, 60) + int(torch.randint(0, 60, ()))
    return {**sample, "image": sample["image"] // 2 + np.uint8(noise % 128)}


class Troubled(Dataset):
    """Reading one of the items meets a machine without descriptors."""

    def __len__(self) -> int:
        return 4

    def __getitem__(self, number: int) -> tuple[np.ndarray, int]:
        if number == 2:
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE), "a.jpg")
        return np.zeros((2, 2, 3), np.uint8), 0


@register("model", "laws_recording")
class Recording(nn.Module):
    """A classifier that keeps the images that it gets, with its mode."""

    seen: ClassVar[list[tuple[bool, torch.Tensor]]] = []

    def __init__(self, num_classes: int) -> None:
        super().__init__()
        self.bias = nn.Parameter(torch.zeros(num_classes))

    def forward(self, batch: dict[str, Any]) -> torch.Tensor:
        self.seen.append((self.training, batch["image"].clone()))
        return self.bias.expand(len(batch["image"]), -1)
