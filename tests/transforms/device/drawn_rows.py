"""Batches for the tests of steps that draw for rows, and those steps by short names."""

from __future__ import annotations

import torch

from penstock.transforms.device.color_jitter import ColorJitter, Grayscale
from penstock.transforms.device.geometry import (
    RandomCrop,
    RandomErasing,
    RandomFlip,
    RandomResizedCrop,
)
from penstock.transforms.device.mixing import CutMix, Mixup

STEPS = {
    "color_jitter": (ColorJitter, {}),
    "cutmix": (CutMix, {}),
    "grayscale": (Grayscale, {"p": 0.5}),
    "mixup": (Mixup, {"alpha": 1.0}),
    "random_crop": (RandomCrop, {"size": [9, 12], "padding": 2}),
    "random_erasing": (RandomErasing, {"p": 0.7, "value": 9}),
    "random_flip": (RandomFlip, {}),
    "random_resized_crop": (RandomResizedCrop, {"size": [9, 7]}),
}
PAIRS = ("cutmix", "mixup")
MASKED = ("cutmix", "random_crop", "random_flip", "random_resized_crop")


def step(name: str, split: str = "train", seed: int = 7, called: str = "step", **options):
    made, usual = STEPS[name]
    return made(seed=seed, split=split, step=called, **{**usual, **options})


def by_tensors(made):
    """Let a step use the arithmetic for devices on the CPU."""
    tensors = made.tensors

    def arrays(pixels, draws):
        draws = {name: torch.from_numpy(draw) for name, draw in draws.items()}
        return tensors(torch.from_numpy(pixels), draws).numpy()

    made.arrays = arrays
    return made


def batch(count: int = 32, height: int = 15, width: int = 13, *, epoch: int = 2, start: int = 100):
    """Images of noise with labels, uint8 [count, height, width, 3]."""
    generator = torch.Generator().manual_seed(count)
    shape = (count, height, width, 3)
    return {
        "image": torch.randint(0, 256, shape, dtype=torch.uint8, generator=generator),
        "label": torch.randint(0, 10, (count,), generator=generator),
        "position": torch.arange(start, start + count),
        "epoch": torch.full((count,), epoch),
        "valid": torch.ones(count, dtype=torch.bool),
        "key": [f"{start + i}.jpg" for i in range(count)],
    }


def masked(given):
    """The same batch with a mask that is the first channel of each image."""
    return {**given, "mask": given["image"][..., 0].long()}


def as_floats(given):
    """The same images as ``to_float`` leaves them."""
    return {**given, "image": given["image"].permute(0, 3, 1, 2).float().div(255)}


def part(given, rows: slice):
    """Some rows of a batch."""
    return {name: value[rows] for name, value in given.items()}


def same(a, b) -> bool:
    """Whether two batches are equal to the bit."""
    return list(a) == list(b) and all(
        torch.equal(a[name], b[name]) if isinstance(a[name], torch.Tensor) else a[name] == b[name]
        for name in a
    )
