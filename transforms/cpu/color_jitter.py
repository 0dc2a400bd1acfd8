"""Change the colours of images."""

from __future__ import annotations

from typing import Annotated, Any

import numpy as np
from annotated_types import Ge, Le
from numpy.typing import NDArray

from penstock.core.registry import register
from penstock.core.sample import Sample
from penstock.transforms.amounts import Amount, amount_range
from penstock.transforms.cpu.targets import image_of

Pixels = NDArray[np.uint8]


@register("transform", "color_jitter")
class ColorJitter:
    """Change brightness, contrast, saturation and hue of an image at random, in random order.

    The formulas are those in torchvision's ``ColorJitter``: brightness is a factor, contrast
    blends with the mean grey of the image, saturation with the grey image, and hue rotates the
    colour circle. Each result is rounded to bytes. Grey images keep their hue and saturation, and
    alpha stays as it is.

    Args:
        brightness: A factor from 1 - b to 1 + b, or from [least, largest].
        contrast: Likewise.
        saturation: Likewise.
        hue: Turns from -h to h, or from [least, largest], within -0.5 .. 0.5.
        p: Probability that an image is changed.
    """

    def __init__(
        self,
        *,
        brightness: Amount = 0.2,
        contrast: Amount = 0.2,
        saturation: Amount = 0.2,
        hue: Amount = 0.05,
        p: Annotated[float, Ge(0), Le(1)] = 0.5,
    ) -> None:
        self._changes = (
            (_brightened, *amount_range(brightness, "color_jitter: brightness")),
            (_contrasted, *amount_range(contrast, "color_jitter: contrast")),
            (_saturated, *amount_range(saturation, "color_jitter: saturation")),
            (_turned, *amount_range(hue, "color_jitter: hue", hue=True)),
        )
        self._p = p

    def __call__(self, sample: Sample, rng: np.random.Generator) -> Sample:
        """Change ``image``, uint8 [H, W, 1], [H, W, 3] or [H, W, 4]."""
        chance, *draws = rng.random(9).tolist()
        if chance >= self._p:
            return sample
        image = image_of(sample)
        if image.dtype != np.uint8 or image.ndim != 3 or image.shape[2] not in (1, 3, 4):
            raise ValueError(
                f"color_jitter: image of {image.dtype} {list(image.shape)}, expected uint8 "
                f"[H, W, C] with 1, 3 or 4 channels"
            )
        colours: Pixels = np.ascontiguousarray(image[..., :3])
        for number in sorted(range(4), key=draws[4:].__getitem__):
            change, low, high = self._changes[number]
            colours = change(colours, low + draws[number] * (high - low)).reshape(colours.shape)
        if image.shape[2] == 4:
            colours = np.concatenate([colours, image[..., 3:]], 2)
        return {**sample, "image": colours}


def _brightened(image: Pixels, factor: float) -> Pixels:
    return _mapped(image, np.arange(256) * factor)


def _contrasted(image: Pixels, factor: float) -> Pixels:
    return _mapped(image, np.arange(256) * factor + (1 - factor) * _grey(image).mean())


def _saturated(image: Pixels, factor: float) -> Pixels:
    import cv2

    if image.shape[2] == 1:
        return image
    grey = cv2.cvtColor(_grey(image), cv2.COLOR_GRAY2RGB)
    return cv2.addWeighted(image, factor, grey, 1 - factor, 0)


def _turned(image: Pixels, turns: float) -> Pixels:
    import cv2

    steps = np.uint8(round(turns * 256) % 256)
    if image.shape[2] == 1 or not steps:
        return image
    hsv = cv2.cvtColor(image, cv2.COLOR_RGB2HSV_FULL)
    hsv[..., 0] += steps  # wraps around, like the circle
    return cv2.cvtColor(hsv, cv2.COLOR_HSV2RGB_FULL)


def _grey(image: Pixels) -> Any:
    import cv2

    return image if image.shape[2] == 1 else cv2.cvtColor(image, cv2.COLOR_RGB2GRAY)


def _mapped(image: Pixels, values: NDArray[np.floating[Any]]) -> Pixels:
    """Replace each byte by its value, rounded and cut to 0 .. 255."""
    import cv2

    return cv2.LUT(image, values.round().clip(0, 255).astype(np.uint8))
