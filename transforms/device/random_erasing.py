"""Erase a random rectangle of each image of a batch on the device."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any, Literal

from annotated_types import Ge, Le

from penstock.core.registry import register
from penstock.core.rng import batch_key
from penstock.core.sample import Batch
from penstock.transforms.device.rows.draws import row_by_row, uniforms
from penstock.transforms.device.rows.windows import DRAWS, checked_range, drawn_windows

if TYPE_CHECKING:
    import torch


@register("batch_transform", "random_erasing")
class RandomErasing:
    """Erase a random rectangle of each image with probability `p`, in training.

    Source: Zhong et al., "Random Erasing Data Augmentation", AAAI 2020. Masks, boxes and
    keypoints stay, so a model still has to find hidden objects. Draws depend only on seed, epoch,
    position and step name.

    Args:
        p: The probability.
        scale: Least and largest share of the image's area.
        ratio: Least and largest width / height.
        value: Fill value, a number or one for each channel. After ``normalize`` 0 is the mean,
            before it 0 is black and 255 white.
        seed: The run's seed.
        split: ``train``; in ``val`` nothing is erased.
        step: The name of this step.
    """

    def __init__(
        self,
        *,
        p: Annotated[float, Ge(0), Le(1)] = 0.25,
        scale: Sequence[float] = (0.02, 0.33),
        ratio: Sequence[float] = (0.3, 3.3),
        value: float | Sequence[float] = 0.0,
        seed: int,
        split: Literal["train", "val"],
        step: str,
    ) -> None:
        prefix = f"augment.device.{step}"
        self.p = p
        self._scale = checked_range(scale, f"{prefix}.scale", least=0, most=1)
        self._ratio = checked_range(ratio, f"{prefix}.ratio", least=0.01, most=100)
        self._value = [float(value)] if isinstance(value, (int, float)) else list(value)
        self._active = split == "train"
        self._step = step
        self._key = batch_key(seed, step)

    def __call__(self, batch: Batch) -> Batch:
        """Erase a rectangle of some rows; in evaluation return the same batch.

        Args:
            batch: With ``image`` uint8 [B, H, W, C] or float [B, C, H, W], or a list of these
                without B; ``epoch`` and ``position`` int64 [B].
        """
        if not self._active:
            return batch
        draws = uniforms(batch, self._key, DRAWS + 1)
        image = batch["image"]
        if isinstance(image, list):
            rows = [self._erased(one[None], draws[:, [i]])[0] for i, one in enumerate(image)]
            return {**batch, "image": rows}
        return {**batch, "image": self._erased(image, draws)}

    def _erased(self, image: torch.Tensor, draws: Any) -> torch.Tensor:
        """Fill the rectangles of rows of one size."""
        import torch

        planes = image if image.is_floating_point() else image.permute(0, 3, 1, 2)
        channels, height, width = planes.shape[1:]
        if len(self._value) not in (1, channels):
            raise ValueError(
                f"augment.device.{self._step}.value is {self._value}, and images have {channels} "
                f"channels; give one number, or one for each"
            )
        windows = drawn_windows(draws, height, width, scale=self._scale, ratio=self._ratio)
        chosen = windows.found & torch.as_tensor(draws[DRAWS] < self.p)
        fill = torch.tensor(self._value).to(image.dtype)
        if row_by_row(image):
            result = image.clone()
            planes = result if image.is_floating_point() else result.permute(0, 3, 1, 2)
            edges = windows.edges()
            for row in chosen.nonzero()[:, 0].tolist():
                top, left, rows, columns = edges[row]
                planes[row, :, top : top + rows, left : left + columns] = fill[:, None, None]
            return result
        inside = windows.inside(height, width) & chosen[:, None, None]
        erased = fill.to(image.device)[:, None, None].where(inside[:, None], planes)
        return erased if image.is_floating_point() else erased.permute(0, 2, 3, 1)
