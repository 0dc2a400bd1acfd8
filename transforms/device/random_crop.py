"""Crop images of a batch at random places on the device."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Literal

import numpy as np
from annotated_types import Ge
from numpy.typing import NDArray

from penstock.core.registry import register
from penstock.transforms.device.draws import Integers, checked_size, row_words
from penstock.transforms.device.random_flip import gathered
from penstock.transforms.device.steps import Draws, PixelStep, Rows, refuse_fixed_fields

if TYPE_CHECKING:
    import torch

_WORD = (1 << 32) - 1


@register("batch_transform", "random_crop")
class RandomCrop(PixelStep):
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

    fields = ("image", "mask")
    moves_only = True

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
        self._size = None if size is None else checked_size(size, step)
        self._padding = padding if split == "train" else 0
        self._reflect = padding_mode == "reflect"
        super().__init__(seed=seed, split=split, step=step)

    def draw(self, rows: Rows) -> Draws:
        """Draw top and left of each crop in the padded image, int64 [B, 2].

        Raises:
            ValueError: The batch has boxes or keypoints, or images are too small.
        """
        if not self._active and self._size is None:
            return {}
        refuse_fixed_fields(rows.fields, self._step)
        down, across = self._room(rows.size)
        rows.size = self._size or rows.size
        if not self._active:
            return {
                "places": np.tile(np.array([(down - 1) // 2, (across - 1) // 2]), (rows.count, 1))
            }
        # A product maps 32 bits to a number below n (Lemire, "Fast random integer generation in an
        # interval", 2019, section 3); the bias is below n / 2^32.
        words = row_words(rows.fields, self._key)
        places = [(words & _WORD) * down >> 32, (words >> 32 & _WORD) * across >> 32]
        return {"places": np.stack(places, 1)}

    def _room(self, given: tuple[int, int]) -> tuple[int, int]:
        """Return the number of places of the crop, down and across."""
        size = self._size or given
        down, across = (a + 2 * self._padding - b + 1 for a, b in zip(given, size, strict=True))
        if down < 1 or across < 1:
            raise ValueError(
                f"augment.device.{self._step}: images are {given[0]} x {given[1]} pixels and the "
                f"crop is {size[0]} x {size[1]} with padding {self._padding}; lower size, raise "
                f"padding, or resize before"
            )
        if self._reflect and self._padding >= min(given):
            raise ValueError(
                f"augment.device.{self._step}: images of {given[0]} x {given[1]} pixels cannot be "
                f"mirrored over {self._padding}; lower padding"
            )
        return down, across

    def arrays(self, pixels: NDArray[Any], draws: Draws) -> NDArray[Any]:
        """Pad all rows and cut the crops."""
        height, width = self._size or pixels.shape[1:3]
        sides = ((0, 0), (self._padding,) * 2, (self._padding,) * 2)
        if self._reflect and self._padding:
            pixels = np.pad(pixels, sides + ((0, 0),) * (pixels.ndim - 3), mode="reflect")
        elif self._padding:  # three times as fast as np.pad
            shape = np.add(pixels.shape[:3], np.sum(sides, 1))
            padded = np.zeros((*shape, *pixels.shape[3:]), pixels.dtype)
            inner = slice(self._padding, -self._padding)
            padded[:, inner, inner] = pixels
            pixels = padded
        return _windows(np.ascontiguousarray(pixels), draws["places"], height, width)

    def tensors(self, pixels: torch.Tensor, draws: Draws) -> torch.Tensor:
        """Gather rows, then columns, without a padded copy."""
        import torch

        size = self._size or pixels.shape[1:3]
        for axis, length in enumerate(size, start=1):
            last = pixels.shape[axis] - 1
            places = torch.arange(length, device=pixels.device) - self._padding
            places = places + draws["places"][:, axis - 1, None]
            if self._reflect:
                places = last - (last - places.abs()).abs()
            within = places.clamp(0, last)
            pixels = gathered(pixels, axis, within)
            if self._padding and not self._reflect:
                shape = [len(pixels), *[1] * (pixels.ndim - 1)]
                shape[axis] = length
                pixels.masked_fill_((within != places).reshape(shape), 0)
        return pixels


def _windows(pixels: NDArray[Any], places: Integers, height: int, width: int) -> NDArray[Any]:
    """Return windows of [B, H, W, ...] at the given places, [B, height, width, ...].

    A strided view holds all possible windows; one index copies the chosen ones, row by row.
    """
    count, down, across = pixels.shape[0], pixels.shape[1] - height + 1, pixels.shape[2] - width + 1
    pixel_bytes = pixels[:1, :1, :1].nbytes
    strides = (*pixels.strides[:3], pixels.strides[1])
    row = np.dtype((np.void, width * pixel_bytes))
    every = np.ndarray((count, down, across, height), row, pixels, 0, strides)
    chosen = every[np.arange(count), places[:, 0], places[:, 1]]
    return chosen.view(pixels.dtype).reshape(count, height, width, *pixels.shape[3:])
