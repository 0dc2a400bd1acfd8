"""Images of a batch flipped left to right by chance, on the device."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Literal

from annotated_types import Ge, Le

from datasets.sample import Batch
from pipeline.registry import register
from pipeline.rng import batch_key
from transforms.batch_rows import changed_rows, on_cpu, row_words

if TYPE_CHECKING:
    import numpy as np
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
        if not self._active:
            return batch
        words = row_words(batch, self._key)
        # 53 bits of the word, as far as a float reaches.
        flips = (words >> 11 & (1 << 53) - 1) < round(self.p * (1 << 53))
        return changed_rows(batch, lambda image, rows: self._flip(image, flips[rows]), self._step)

    def _flip(self, image: torch.Tensor, flips: Any) -> torch.Tensor:
        """Flip rows of [B, H, W, ...] where `flips`, bool [B], says so."""
        import torch

        if on_cpu(image):
            return torch.from_numpy(_flip_on_cpu(image.numpy(), flips))
        flips = torch.as_tensor(flips)
        return torch.where(flips.reshape(-1, *[1] * (image.ndim - 1)), image.flip(2), image)


def _flip_on_cpu(image: NDArray[np.uint8], flips: NDArray[np.bool_]) -> NDArray[Any]:
    """The same in uint8 [B, H, W, C] by OpenCV, all rows to be flipped as one tall image."""
    import cv2

    height, width, channels = image.shape[1:]
    flipped = image.copy()
    chosen = image[flips]
    if len(chosen):
        tall = cv2.flip(chosen.reshape(-1, width, channels), 1)
        flipped[flips] = tall.reshape(-1, height, width, channels)
    return flipped
