"""Crop images of a batch at random places on the device."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Annotated, Any, Literal

import numpy as np
from annotated_types import Ge
from numpy.typing import NDArray

from penstock.core.registry import register
from penstock.core.rng import batch_key
from penstock.core.sample import Batch
from penstock.transforms.device.rows.changes import RowChange, RowStep, refuse_fixed_fields
from penstock.transforms.device.rows.draws import row_words

if TYPE_CHECKING:
    import torch

_WORD = (1 << 32) - 1


@register("batch_transform", "random_crop")
class RandomCrop(RowStep):
    """Crop each image, with its mask, at a random place in training, at the centre in evaluation.

    Places depend only on seed, epoch, position and step name.

    Args:
        size: Height and width of the crop, or one number for both; None keeps the images' size, for
            crops that `padding` shifts.
        padding: Pixels to add to every side before cropping, in training.
        padding_mode: ``zeros``, or ``reflect``, which mirrors the image at its outermost pixels.
        seed: The run's seed.
        split: ``train`` or ``val``.
        step: The name of this step.
    """

    def __init__(
        self,
        *,
        size: int | list[int] | None = None,
        padding: Annotated[int, Ge(0)] = 0,
        padding_mode: Literal["zeros", "reflect"] = "zeros",
        seed: int,
        split: Literal["train", "val"],
        step: str,
    ) -> None:
        sides = [size, size] if isinstance(size, int) else size
        if sides is not None and (len(sides) != 2 or min(sides) < 1):
            raise ValueError(
                f"augment.device.{step}: size is {size}, expected one side or [height, width], "
                f"in pixels from 1 on"
            )
        self._size = None if sides is None else (sides[0], sides[1])
        self._padding = padding if split == "train" else 0
        self._reflect = padding_mode == "reflect"
        self._centre = split != "train"
        self._step = step
        self._key = batch_key(seed, step)

    def row_change(self, batch: Batch) -> RowChange | None:
        """Return the crop of a batch's rows; see `RowStep`."""
        if self._centre and self._size is None:
            return None
        refuse_fixed_fields(batch, self._step)
        if self._centre:
            return RowChange(self._centred, self._centred)
        words = functools.cache(functools.partial(row_words, batch, self._key))
        return RowChange(
            lambda pixels, rows: self._cut(pixels, words()[rows]),
            lambda image, rows: self._gathered(image, words()[rows]),
        )

    def _room(self, image: Any) -> tuple[int, int, int, int]:
        """Return height and width of the crop, and the number of places for each."""
        height, width = self._size or (image.shape[1], image.shape[2])
        down = image.shape[1] + 2 * self._padding - height + 1
        across = image.shape[2] + 2 * self._padding - width + 1
        if down < 1 or across < 1:
            raise ValueError(
                f"augment.device.{self._step}: images are {image.shape[1]} x {image.shape[2]} "
                f"pixels and the crop is {height} x {width} with padding {self._padding}; lower "
                f"size, raise padding, or resize before"
            )
        if self._reflect and self._padding >= min(image.shape[1], image.shape[2]):
            raise ValueError(
                f"augment.device.{self._step}: images of {image.shape[1]} x {image.shape[2]} "
                f"pixels cannot be mirrored over {self._padding}; lower padding"
            )
        return height, width, down, across

    def _centred(self, image: Any, _: slice) -> Any:
        """Return the centre of [B, H, W, ...], an array or a tensor."""
        height, width, down, across = self._room(image)
        top, left = (down - 1) // 2, (across - 1) // 2
        return image[:, top : top + height, left : left + width]

    def _cut(self, pixels: NDArray[np.uint8], words: NDArray[np.int64]) -> NDArray[np.uint8]:
        """Crop rows of uint8 [B, H, W, C] at the places of `words`, int64 [B]."""
        height, width, down, across = self._room(pixels)
        padded = self._padded(pixels) if self._padding else pixels
        return _windows(padded, *_places(words, down, across), height, width)

    def _padded(self, image: NDArray[np.uint8]) -> NDArray[np.uint8]:
        """Add pixels on every side of uint8 [B, H, W, C]."""
        padding, (count, height, width, channels) = self._padding, image.shape
        if self._reflect:
            sides = (padding, padding)
            return np.pad(image, ((0, 0), sides, sides, (0, 0)), mode="reflect")
        # Three times as fast as np.pad.
        padded = np.zeros((count, height + 2 * padding, width + 2 * padding, channels), np.uint8)
        padded[:, padding : padding + height, padding : padding + width] = image
        return padded

    def _gathered(self, image: torch.Tensor, words: torch.Tensor) -> torch.Tensor:
        """Crop [B, H, W, ...] like `_cut`, by one gather without a padded copy."""
        import torch

        height, width, down, across = self._room(image)
        tops, lefts = map(torch.as_tensor, _places(words, down, across))
        device = image.device
        y = tops[:, None] + torch.arange(height, device=device) - self._padding
        x = lefts[:, None] + torch.arange(width, device=device) - self._padding
        bottom, right = image.shape[1] - 1, image.shape[2] - 1
        inside = ((y >= 0) & (y <= bottom))[:, :, None] & ((x >= 0) & (x <= right))[:, None]
        if self._reflect:
            y, x = bottom - (bottom - y.abs()).abs(), right - (right - x.abs()).abs()
        else:
            y, x = y.clamp(0, bottom), x.clamp(0, right)
        rows = torch.arange(len(image), device=device)[:, None, None]
        crops = image[rows, y[:, :, None], x[:, None]]
        if self._padding and not self._reflect:
            crops.masked_fill_(~inside.reshape(*inside.shape, *[1] * (image.ndim - 3)), 0)
        return crops


def _places(words: Any, down: int, across: int) -> tuple[Any, Any]:
    """Return top and left, int64 [B] each, from random words, int64 [B].

    A product maps 32 bits to a number below n (Lemire, "Fast random integer generation in an
    interval", 2019, section 3); the bias is below n / 2^32.
    """
    return (words & _WORD) * down >> 32, (words >> 32 & _WORD) * across >> 32


def _windows(
    image: NDArray[np.uint8], tops: NDArray[Any], lefts: NDArray[Any], height: int, width: int
) -> NDArray[np.uint8]:
    """Return windows of uint8 [B, H, W, C] at the given places, uint8 [B, height, width, C].

    A strided view holds all possible windows; one index copies the chosen ones, row by row.
    """
    count, channels = image.shape[0], image.shape[3]
    down, across = image.shape[1] - height + 1, image.shape[2] - width + 1
    row = np.dtype((np.void, width * channels))
    by_row = (*image.strides[:3], image.strides[1])
    every = np.ndarray((count, down, across, height), row, image, 0, by_row)
    chosen = every[np.arange(count), tops, lefts]
    return chosen.view(np.uint8).reshape(count, height, width, channels)
