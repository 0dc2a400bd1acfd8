"""Datasets as people have them: waveforms with text, and an endless stream of noise."""

from __future__ import annotations

import torch
from torch.utils.data import Dataset, IterableDataset


class Waves(Dataset):
    """Curves [1, T], tokens of varied number, text and a number."""

    def __len__(self):
        return 10

    def __getitem__(self, item):
        return {
            "array": torch.sin(torch.arange(500) / (item + 2))[None],
            "tokens": torch.arange(5 + item),
            "text": f"said <i>{item}</i>",
            "age": 20.5 + item,
        }


class Stream(IterableDataset):
    """Images [3, H, W] of floats, and labels."""

    def __iter__(self):
        number = 0
        while True:
            yield torch.rand(3, 12, 20), number % 4
            number += 1
