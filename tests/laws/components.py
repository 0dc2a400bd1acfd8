"""Components as users write them, correct and faulty, for the tests of the laws.

Each worker process imports this file, so it does without torch.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from penstock.core import contracts
from penstock.core.registry import register


def photos_of(root: str) -> tuple[list[Path], list[int]]:
    """Return the photographs in the class folders of `root`, and their labels."""
    files = sorted(Path(root).glob("*/*.jpg"))
    classes = sorted({file.parent.name for file in files})
    return files, [classes.index(file.parent.name) for file in files]


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
    files, targets = photos_of(root)
    for index in range(shard, len(files), num_shards):
        yield {"key": str(index), "image": files[index].read_bytes(), "label": targets[index]}
