"""A custom dataset type that generates images instead of reading them: docs/architecture.md."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from penstock import register
from penstock.core.contracts import Dataset
from penstock.datasets.records.table import Table
from penstock.datasets.sample_stages import TransformStage


@register("dataset", "noise")
class Noise(Dataset):
    """Images of noise in four shades, each a function of its index alone.

    Args:
        count: Images in a split.
        transform: The augmentation of this split.
        seed: The run's seed.
        split: ``train`` or ``val``.
    """

    def __init__(
        self, *, count: int = 500, transform: Callable[..., Any], seed: int, split: str
    ) -> None:
        self._transform = TransformStage(transform, seed=seed, storage=f"noise {split}")
        self._keys = [f"{split}/{n}" for n in range(count)]
        shades = ["black", "dark", "grey", "light"]
        self.index = Table(self._keys, {"label": np.arange(count) % 4}, shades)

    def __len__(self) -> int:
        return len(self._keys)

    def fingerprint(self) -> str:
        """Return the identity of the data."""
        return self.index.fingerprint()

    def fetch(self, indices: np.ndarray, positions: np.ndarray, epoch: int) -> list[Any]:
        """Return samples of records `indices`, int64 [n], augmented at `positions`, int64 [n]."""
        samples = [self._sample(i) for i in indices.tolist()]
        return list(self._transform.each(samples, positions, epoch))

    def _sample(self, i: int) -> dict[str, Any]:
        noise = np.random.default_rng(i).integers(0, 64, (48, 48, 3), np.uint8)
        label = i % 4
        return {"image": noise + 48 * label, "label": label, "index": i, "key": self._keys[i]}
