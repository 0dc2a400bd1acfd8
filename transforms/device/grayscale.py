"""Make images of a batch grey by chance, on the device."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Literal

from annotated_types import Ge, Le

from penstock.core.registry import register
from penstock.core.rng import batch_key
from penstock.core.sample import Batch
from penstock.transforms.device.color_jitter import changed_colours, luma
from penstock.transforms.device.rows.draws import uniforms

if TYPE_CHECKING:
    import torch


@register("batch_transform", "grayscale")
class Grayscale:
    """In training, each image is made grey with probability `p`; it keeps its three channels.

    Stands before ``normalize``. Which images are follows from seed, epoch, position and the
    name of the step alone, on any device and however the batch is cut.

    Args:
        p: The probability.
        seed: The run's seed.
        split: ``train``; in ``val`` nothing is changed.
        step: The name of this step.
    """

    def __init__(
        self,
        *,
        p: Annotated[float, Ge(0), Le(1)] = 0.1,
        seed: int,
        split: Literal["train", "val"],
        step: str,
    ) -> None:
        self.p = p
        self._active = split == "train"
        self._step = step
        self._key = batch_key(seed, step)

    def __call__(self, batch: Batch) -> Batch:
        """Make some rows grey: 0.299 red + 0.587 green + 0.114 blue (ITU-R BT.601).

        Args:
            batch: With ``image`` uint8 [B, H, W, 3] or float [B, 3, H, W] from 0 to 1, or a
                list of these without B; ``epoch`` and ``position`` int64 [B].

        Returns:
            The batch with new images of the same shapes, and as it was in evaluation.
        """
        if not self._active:
            return batch
        chosen = uniforms(batch, self._key, 1)[0] < self.p

        def change(pixels: torch.Tensor, rows: slice) -> torch.Tensor:
            return luma(pixels).expand_as(pixels).clone()

        return changed_colours(batch, change, chosen, self._step)
