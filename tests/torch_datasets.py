"""Torch datasets as users have them, for tests of the adapter."""

from __future__ import annotations

import numpy as np
from torch.utils.data import Dataset, IterableDataset


class Squares(Dataset):
    """A hundred grey squares of two classes, as (image, label) pairs."""

    def __len__(self):
        return 100

    def __getitem__(self, index):
        return np.full((64, 64, 3), index * 2, np.uint8), index % 2


class SquareStream(IterableDataset):
    """The same pairs in a row, without an index."""

    def __iter__(self):
        squares = Squares()
        return (squares[index] for index in range(len(squares)))
