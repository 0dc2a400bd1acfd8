"""Components as users write them, correct and faulty, for the tests of the laws."""

from __future__ import annotations

import errno
import os
import random
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar

import cv2
import numpy as np
import torch
from torch import nn
from torch.utils.data import Dataset, IterableDataset, Sampler

from penstock.core import contracts
from penstock.core.registry import register


class Photos(Dataset):
    """A map-style dataset that draws from all three global random states."""

    def __init__(self, root: str) -> None:
        self.files = sorted(Path(root).glob("*/*.jpg"))
        self.classes = sorted({file.parent.name for file in self.files})
        self.targets = [self.classes.index(file.parent.name) for file in self.files]

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


@register("transform", "laws_undeclared_noise")
def undeclared_noise(sample: dict[str, Any], rng: Any) -> dict[str, Any]:
    """Draw from a global state without registering it."""
    return {**sample, "image": sample["image"] // 2 + np.uint8(np.random.randint(0, 128))}


@register("transform", "laws_counting")
class Counting:
    """Keeps state from one sample to the next."""

    def __init__(self) -> None:
        self.count = 0

    def __call__(self, sample: dict[str, Any], rng: Any) -> dict[str, Any]:
        self.count += 1
        return {**sample, "image": sample["image"] // 2 + np.uint8(self.count % 128)}


@register("transform", "laws_draw")
def draw(sample: dict[str, Any], rng: np.random.Generator) -> dict[str, Any]:
    """Replace the image with drawn pixels."""
    return {**sample, "image": rng.integers(0, 256, sample["image"].shape, np.uint8)}


class Troubled(Dataset):
    """Reading one of the items meets a machine without descriptors."""

    def __len__(self) -> int:
        return 4

    def __getitem__(self, number: int) -> tuple[np.ndarray, int]:
        if number == 2:
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE), "a.jpg")
        return np.zeros((2, 2, 3), np.uint8), 0


@register("transform", "laws_greedy")
def greedy(sample: dict[str, Any], rng: Any, *, record: int) -> dict[str, Any]:
    """Want more memory than there is for one record."""
    if sample["index"] == record:
        raise MemoryError
    return sample


@register("transform", "laws_seen")
class Seen:
    """Leaves the ids of the processes that transform samples in a folder."""

    def __init__(self, folder: str) -> None:
        self.folder = folder

    def __call__(self, sample: dict[str, Any], rng: Any) -> dict[str, Any]:
        Path(self.folder, str(os.getpid())).touch()
        return sample


@register("transform", "laws_slow")
def slow(sample: dict[str, Any], rng: Any, *, seconds: float) -> dict[str, Any]:
    """Sleep for `seconds`."""
    time.sleep(seconds)
    return sample


@register("transform", "laws_deadly")
class Deadly:
    """Kills the process that transforms one record."""

    def __init__(self, record: int) -> None:
        self.record = record

    def __call__(self, sample: dict[str, Any], rng: Any) -> dict[str, Any]:
        if sample["index"] == self.record:
            os.kill(os.getpid(), signal.SIGKILL)
        return sample


@register("transform", "laws_deadly_partner")
class DeadlyPartner:
    """Kills the process that uses one record as a partner."""

    def __init__(self, record: int) -> None:
        self.record = record

    def partners(self, rng: Any) -> int:
        return 1

    def __call__(self, sample: dict[str, Any], rng: Any, partners: Any) -> dict[str, Any]:
        if self.record in [partner["index"] for partner in partners]:
            os.kill(os.getpid(), signal.SIGKILL)
        return sample


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


@register("sampler", "laws_groups")
class Groups(contracts.Sampler):
    """Records in order, in groups of four positions."""

    group = 4

    def __init__(self, n: int, index: Any = None, seed: int = 0) -> None:
        self._n = n

    def __len__(self) -> int:
        return self._n

    def indices(self, epoch: int, start: int, stop: int) -> np.ndarray:
        return np.arange(start, stop, dtype=np.int64)


@register("source", "laws_photos")
def photo_shards(root: str, shard: int, num_shards: int) -> Iterator[dict[str, Any]]:
    """Yield every `num_shards`-th photograph."""
    photos = Photos(root)
    for index in range(shard, len(photos), num_shards):
        content = photos.files[index].read_bytes()
        yield {"key": str(index), "image": content, "label": photos.targets[index]}
