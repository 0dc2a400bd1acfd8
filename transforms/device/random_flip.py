"""Flip random images of a batch left to right on the device."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Literal

import numpy as np
from annotated_types import Ge, Le
from numpy.typing import NDArray

from penstock.core.registry import register
from penstock.transforms.device.draws import row_words
from penstock.transforms.device.steps import Draws, PixelStep, Rows, refuse_fixed_fields

if TYPE_CHECKING:
    import torch

_MAX_PIXEL_BYTES = 512  # limit of OpenCV's flip


@register("batch_transform", "random_flip")
class RandomFlip(PixelStep):
    """Flip each image, with its mask, left to right with probability `p`, in training.

    Draws depend only on seed, epoch, position and step name.

    Args:
        p: The probability.
        seed: The run's seed.
        split: ``train``; in ``val`` nothing is flipped.
        step: The name of this step.
    """

    fields = ("image", "mask")
    moves_only = True

    def __init__(
        self,
        *,
        p: Annotated[float, Ge(0), Le(1)] = 0.5,
        seed: int,
        split: Literal["train", "val"],
        step: str,
    ) -> None:
        super().__init__(seed=seed, split=split, step=step)
        self._below = round(p * (1 << 53))

    def draw(self, rows: Rows) -> Draws:
        """Draw which rows to flip, bool [B]; raise ValueError for boxes or keypoints."""
        if not self._active:
            return {}
        refuse_fixed_fields(rows.fields, self._step)
        # 53 bits of the word, the precision of a float.
        return {"flips": (row_words(rows.fields, self._key) >> 11 & (1 << 53) - 1) < self._below}

    def arrays(self, pixels: NDArray[Any], draws: Draws) -> NDArray[Any]:
        """Flip the chosen rows, all together as one tall image.

        NumPy copies each row of the batch as one element. Flipping from one buffer to another would
        take OpenCV twice as long.
        """
        import cv2

        pixels = pixels.copy()
        width, row_bytes = pixels.shape[2], pixels[:1].nbytes
        pixel_bytes = pixels[:1, :1, :1].nbytes
        if not draws["flips"].any():
            return pixels
        if pixel_bytes > _MAX_PIXEL_BYTES:
            pixels[draws["flips"]] = pixels[draws["flips"]][:, :, ::-1]
            return pixels
        rows = pixels.reshape(len(pixels), -1).view(np.dtype((np.void, row_bytes)))[:, 0]
        chosen = rows[draws["flips"]]
        tall = chosen.view(np.uint8).reshape(-1, width, pixel_bytes)
        cv2.flip(tall, 1, dst=tall)
        rows[draws["flips"]] = chosen
        return pixels

    def tensors(self, pixels: torch.Tensor, draws: Draws) -> torch.Tensor:
        """Gather the columns of each row, forwards or backwards."""
        import torch

        columns = torch.arange(pixels.shape[2], device=pixels.device)
        places = columns.flip(0).where(draws["flips"][:, None], columns)
        return gathered(pixels, 2, places)


def gathered(pixels: torch.Tensor, axis: int, places: torch.Tensor) -> torch.Tensor:
    """Gather places, int64 [B, n], of an axis of [B, H, W, ...] for each row of the batch."""
    shape = [*pixels.shape]
    shape[axis] = places.shape[1]
    own = [1] * pixels.ndim
    own[0], own[axis] = places.shape
    return pixels.gather(axis, places.reshape(own).expand(shape))
