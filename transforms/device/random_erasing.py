"""Erase a random rectangle of each image of a batch on the device."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any, Literal

import numpy as np
from annotated_types import Ge, Le
from numpy.typing import NDArray

from penstock.core.registry import register
from penstock.transforms.device.draws import WINDOW_DRAWS, checked_range, drawn_windows, uniforms
from penstock.transforms.device.steps import Draws, PixelStep, Rows
from penstock.transforms.device.windows import inside

if TYPE_CHECKING:
    import torch


@register("batch_transform", "random_erasing")
class RandomErasing(PixelStep):
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
        super().__init__(seed=seed, split=split, step=step)

    def draw(self, rows: Rows) -> Draws:
        """Draw top, left, height and width of each rectangle, int64 [B, 4]; zeros erase nothing."""
        if not self._active:
            return {}
        draws = uniforms(rows.fields, self._key, WINDOW_DRAWS + 1)
        windows, _ = drawn_windows(
            draws[:WINDOW_DRAWS], rows.size, scale=self._scale, ratio=self._ratio
        )
        windows[draws[WINDOW_DRAWS] >= self.p] = 0
        return {"windows": windows, "fill": np.array(self._value, np.float32)}

    def arrays(self, pixels: NDArray[Any], draws: Draws) -> NDArray[Any]:
        """Fill the rectangles."""
        self._check_channels(pixels)
        result, fill = pixels.copy("K"), draws["fill"].astype(pixels.dtype)
        for row, (top, left, height, width) in enumerate(draws["windows"].tolist()):
            result[row, top : top + height, left : left + width] = fill
        return result

    def tensors(self, pixels: torch.Tensor, draws: Draws) -> torch.Tensor:
        """Fill the rectangles, in one pass."""
        self._check_channels(pixels)
        erased = inside(draws["windows"], *pixels.shape[1:3])[..., None]
        return draws["fill"].to(pixels.dtype).where(erased, pixels)

    def _check_channels(self, pixels: Any) -> None:
        if len(self._value) not in (1, pixels.shape[3]):
            raise ValueError(
                f"augment.device.{self._step}.value is {self._value}, and images have "
                f"{pixels.shape[3]} channels; give one number, or one for each"
            )
