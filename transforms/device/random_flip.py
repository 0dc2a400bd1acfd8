"""Flip random images of a batch left to right on the device."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Annotated, Any, Literal

import numpy as np
from annotated_types import Ge, Le
from numpy.typing import NDArray

from penstock.core.registry import register
from penstock.core.rng import batch_key
from penstock.core.sample import Batch
from penstock.transforms.device.rows.changes import RowChange, RowStep, refuse_fixed_fields
from penstock.transforms.device.rows.draws import row_words

if TYPE_CHECKING:
    import torch


@register("batch_transform", "random_flip")
class RandomFlip(RowStep):
    """Flip each image, with its mask, left to right with probability `p`, in training.

    Draws depend only on seed, epoch, position and step name.

    Args:
        p: The probability.
        seed: The run's seed.
        split: ``train``; in ``val`` nothing is flipped.
        step: The name of this step.
    """

    def __init__(
        self,
        *,
        p: Annotated[float, Ge(0), Le(1)] = 0.5,
        seed: int,
        split: Literal["train", "val"],
        step: str,
    ) -> None:
        self.p = p
        self._active = split == "train"
        self._step = step
        self._key = batch_key(seed, step)
        self._below = round(p * (1 << 53))

    def row_change(self, batch: Batch) -> RowChange | None:
        """Return the flip of a batch's rows; see `RowStep`."""
        if not self._active:
            return None
        refuse_fixed_fields(batch, self._step)

        @functools.cache
        def flips() -> Any:  # 53 bits of the word, the precision of a float
            return (row_words(batch, self._key) >> 11 & (1 << 53) - 1) < self._below

        return RowChange(
            lambda pixels, rows: _flipped(pixels, flips()[rows]),
            lambda image, rows: _flipped_by_torch(image, flips()[rows]),
        )


def _flipped_by_torch(image: torch.Tensor, flips: Any) -> torch.Tensor:
    """Flip rows of [B, H, W, ...] where `flips`, bool [B], is true."""
    import torch

    flips = torch.as_tensor(flips)
    return torch.where(flips.reshape(-1, *[1] * (image.ndim - 1)), image.flip(2), image)


def _flipped(pixels: NDArray[np.uint8], flips: NDArray[np.bool_]) -> NDArray[np.uint8]:
    """Flip rows of uint8 [B, H, W, C], all together as one tall image.

    NumPy copies each row of the batch as one element. Flipping from one buffer to another would
    take OpenCV twice as long.
    """
    import cv2

    pixels = pixels.copy()
    count, height, width, channels = pixels.shape
    rows = pixels.reshape(count, -1).view(np.dtype((np.void, height * width * channels)))[:, 0]
    chosen = rows[flips]
    if len(chosen):
        tall = chosen.view(np.uint8).reshape(-1, width, channels)
        cv2.flip(tall, 1, dst=tall)
        rows[flips] = chosen
    return pixels
