"""A dataset of any number of records that holds none of them."""

from __future__ import annotations

from typing import Any

import numpy as np

from penstock import register
from penstock.core.contracts import Dataset, Index


class Numbers(Index):
    """An index whose keys are the numbers of the records."""

    columns: tuple[str, ...] = ()
    class_names = None

    def __init__(self, count: int) -> None:
        self._count = count

    def __len__(self) -> int:
        return self._count

    def column(self, name: str) -> np.ndarray:
        raise KeyError(f"no column {name!r}")

    def keys(self, indices: np.ndarray) -> list[str]:
        return [str(index) for index in indices.tolist()]

    def fingerprint(self) -> str:
        return f"numbers {self._count}"


@register("dataset", "laws_numbers")
class NumbersDataset(Dataset):
    """Black images, each of which costs nothing until it is fetched."""

    def __init__(self, *, count: int, transform: Any, seed: int, split: str) -> None:
        self.index = Numbers(count)

    def __len__(self) -> int:
        return len(self.index)

    def fingerprint(self) -> str:
        return self.index.fingerprint()

    def fetch(self, indices: np.ndarray, positions: np.ndarray, epoch: int) -> list[Any]:
        image = np.zeros((2, 2, 3), np.uint8)
        return [{"image": image, "index": i, "key": str(i)} for i in indices.tolist()]
