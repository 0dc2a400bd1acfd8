"""Images of a batch flipped left to right by chance, on the device."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Literal

import numpy as np
from annotated_types import Ge, Le

from datasets.sample import Batch
from pipeline.registry import register
from pipeline.rng import batch_key
from transforms.batch_rows import RowChange, changed_rows, refuse_fixed_fields, row_words
from transforms.gathered_rows import Mirror

if TYPE_CHECKING:
    import torch
    from numpy.typing import NDArray


@register("batch_transform", "random_flip")
class RandomFlip:
    """In training, each image is flipped left to right with probability `p`, its mask with it.

    Whether it is follows from seed, epoch, position and the name of the step alone, on any
    device and however the batch is cut.

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

    def __call__(self, batch: Batch) -> Batch:
        """Flip some rows.

        Args:
            batch: With ``image`` uint8 [B, H, W, C] or float [B, C, H, W], perhaps ``mask``
                [B, H, W], or lists of these without B; ``epoch`` and ``position`` int64 [B].

        Returns:
            The batch with new images of the same shapes, and as it was in evaluation.

        Raises:
            ValueError: The batch holds boxes or keypoints, which would have to move too.
        """
        change = self.row_change(batch)
        return batch if change is None else changed_rows(batch, [change])

    def row_change(self, batch: Batch) -> RowChange | None:
        """What it does to the rows of a batch; see `transforms.batch_rows.RowStep`."""
        if not self._active:
            return None
        refuse_fixed_fields(batch, self._step)
        # 53 bits of the word, as far as a float reaches.
        words = row_words(batch, self._key)
        flips = (words >> 11 & (1 << 53) - 1) < self._below
        return RowChange(
            lambda pixels, rows: _flipped(pixels, flips[rows]),
            lambda image, rows: _flipped_by_torch(image, flips[rows]),
            in_place=True,
        )

    def as_gathered(self, height: int, width: int) -> Mirror | None:
        """Images of this size mirrored; see `transforms.batch_rows.RowStep`."""
        return Mirror(self._key, self._below) if self._active else None


def _flipped_by_torch(image: torch.Tensor, flips: Any) -> torch.Tensor:
    """Flip rows of [B, H, W, ...] where `flips`, bool [B], says so."""
    import torch

    flips = torch.as_tensor(flips)
    return torch.where(flips.reshape(-1, *[1] * (image.ndim - 1)), image.flip(2), image)


def _flipped(pixels: NDArray[np.uint8], flips: NDArray[np.bool_]) -> NDArray[np.uint8]:
    """The same in uint8 [B, H, W, C], in place: all rows to be flipped as one tall image.

    A row of the batch is moved as one element, which NumPy copies at once. OpenCV takes twice
    the time where it flips into other memory.
    """
    import cv2

    count, height, width, channels = pixels.shape
    rows = pixels.reshape(count, -1).view(np.dtype((np.void, height * width * channels)))[:, 0]
    chosen = rows[flips]
    if len(chosen):
        tall = chosen.view(np.uint8).reshape(-1, width, channels)
        cv2.flip(tall, 1, dst=tall)
        rows[flips] = chosen
    return pixels
