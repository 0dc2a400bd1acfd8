"""Change the colours of a batch's images on the device, or make images grey."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from penstock.core.registry import register
from penstock.transforms.amounts import Amount, Share, Turns
from penstock.transforms.colours import GREY, ColourAmounts, recoloured
from penstock.transforms.device.draws import uniforms
from penstock.transforms.device.steps import Draws, PixelStep, Rows, is_float, rows_at_once

if TYPE_CHECKING:
    import torch


class ColourStep(PixelStep):
    """A step that maps the colours of some rows, see `transforms.colours`; other rows stay.

    Draws: ``rows``, [k]; ``of_pixel`` and, if the mean colour matters, ``of_mean``, [k, 3, 3].
    """

    def arrays(self, pixels: NDArray[Any], draws: Draws) -> NDArray[Any]:
        """Change the chosen rows one by one."""
        self._check_channels(pixels)
        result = pixels.copy("K")
        of_mean = draws.get("of_mean", np.zeros_like(draws["of_pixel"]))
        for row, *maps in zip(draws["rows"].tolist(), draws["of_pixel"], of_mean, strict=True):
            image = pixels[row].astype(np.float32) if is_float(pixels) else pixels[row]
            result[row] = recoloured(image, *maps)
        return result

    def tensors(self, pixels: torch.Tensor, draws: Draws) -> torch.Tensor:
        """Change the chosen rows by one product, in chunks, so that few are floats at once."""
        self._check_channels(pixels)
        result = pixels.clone()
        given, planes = (each.permute(0, 3, 1, 2) for each in (pixels, result))
        white, rounding = (1, 0.0) if pixels.is_floating_point() else (255, 0.5)
        at_once = rows_at_once(pixels, 5)
        for start in range(0, len(draws["rows"]), at_once):
            chunk = {name: draw[start : start + at_once] for name, draw in draws.items()}
            colours = given.index_select(0, chunk["rows"]).flatten(2).float()
            changed = chunk["of_pixel"] @ colours
            offset: Any = rounding
            if "of_mean" in chunk:
                offset = chunk["of_mean"] @ colours.mean(2, keepdim=True) + rounding
            del colours
            changed = changed.add_(offset).clamp_(0, white).to(pixels.dtype)
            planes.index_copy_(0, chunk["rows"], changed.unflatten(2, pixels.shape[1:3]))
        return result

    def _check_channels(self, pixels: Any) -> None:
        if pixels.ndim != 4 or pixels.shape[3] != 3:
            raise ValueError(
                f"augment.device.{self.step}: images are {list(pixels.shape[1:])}, expected 3 "
                f"channels, uint8 [H, W, 3] or float [3, H, W] from 0 to 1; leave the step out"
            )


@register("batch_transform", "color_jitter")
@dataclass(kw_only=True, eq=False)
class ColorJitter(ColourAmounts, ColourStep):
    """Change brightness, contrast, saturation and hue of each image at random, in training.

    The first three are as in torchvision's ``ColorJitter``, and the hue turns in the YIQ colour
    space, as in DALI's ``color_twist``. Values are rounded and cut at black and white once, at the
    end. Put this step before ``normalize``.
    """

    brightness: Amount = 0.4
    contrast: Amount = 0.4
    saturation: Amount = 0.4
    hue: Turns = 0.1
    p: Share = 1.0

    def choose(self, rows: Rows) -> Draws:
        """Draw which rows to change, and compose the changes of each."""
        self.check(rows)
        draws = uniforms(rows.fields, self.key, 5)
        chosen = np.flatnonzero(draws[4] < self.p)
        if not len(chosen):
            return {}
        of_pixel, of_mean = self.maps(draws[:4, chosen])
        drawn = {"rows": chosen, "of_pixel": of_pixel}
        return {**drawn, "of_mean": of_mean} if self.contrast else drawn


@register("batch_transform", "grayscale")
@dataclass(kw_only=True, eq=False)
class Grayscale(ColourStep):
    """Make each image grey with probability `p` in training, before ``normalize``.

    Args:
        p: The probability.
    """

    p: Share = 0.1

    def choose(self, rows: Rows) -> Draws:
        """Draw the rows to make grey."""
        self.check(rows)
        chosen = np.flatnonzero(uniforms(rows.fields, self.key, 1)[0] < self.p)
        grey = np.tile(GREY.astype(np.float32), (len(chosen), 1, 1))
        return {"rows": chosen, "of_pixel": grey} if len(chosen) else {}
