"""A storage and a transform of noise, with faults, for contracts that need a loader."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import numpy as np

from penstock import register
from penstock.core.contracts import Storage
from penstock.core.sample import BadRecord, Record
from penstock.datasets.records.table import Table


@register("storage", "contract_noise")
class Noise(Storage):
    """Images of 4 x 4 pixels in memory, each a function of its number.

    Args:
        count: Number of records.
        bad: Numbers of the bad records.
        crash: Number of a record whose reading raises a KeyError.
    """

    def __init__(self, *, count: int, bad: tuple[int, ...] = (), crash: int | None = None) -> None:
        self.count, self.bad, self.crash = count, frozenset(bad), crash
        keys = [f"img/{number:07d}.jpg" for number in range(count)]
        self.index = Table(keys, {"label": np.arange(count) % 3}, ("a", "b", "c"))

    def __str__(self) -> str:
        return "noise in memory"

    def read(self, indices: np.ndarray) -> list[Record | BadRecord]:
        return [self._record(index) for index in indices.tolist()]

    def _record(self, index: int) -> Record | BadRecord:
        key = f"img/{index:07d}.jpg"
        if index in self.bad:
            return BadRecord(index, key, "truncated")
        if index == self.crash:
            raise KeyError("a user's mistake")
        image = np.random.default_rng(index).integers(0, 256, (4, 4, 3), np.uint8)
        return Record(index, key, {"image": image, "label": index % 3})


@register("transform", "contract_noise")
def noise(
    sample: dict[str, Any], rng: np.random.Generator, *, sleep_s: float = 0.0
) -> dict[str, Any]:
    """Add noise to an image, and sleep."""
    time.sleep(sleep_s)
    image = sample["image"] // 2 + rng.integers(0, 128, (4, 4, 3), np.uint8)
    return {**sample, "image": image}


def typed(
    count: int, *, bad: Sequence[int] = (), crash: int | None = None, sleep_s: float = 0.0
) -> list[str]:
    """Return the overrides of a dataset of noise with augmentation."""
    numbers = ",".join(map(str, bad))
    return [
        "imports=[tests.contracts.noise]", "dataset/storage=contract_noise", "dataset/decode=raw",
        f"dataset.storage.count={count}", f"dataset.storage.bad=[{numbers}]",
        f"dataset.storage.crash={'null' if crash is None else crash}", "dataset.val_fraction=0",
        "augment=as_is", "loader.drop_last=false", "loader.max_error_rate=1",
        f"augment.train={{noise: {{_target_: transform/contract_noise, sleep_s: {sleep_s}}}}}",
    ]  # fmt: skip
