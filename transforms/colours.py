"""Change brightness, contrast, saturation and hue of an image by one affine map of its colours.

A pixel x becomes A x + B m, where m is the mean colour of the image. Brightness multiplies,
contrast blends with the mean grey, saturation with the grey of each pixel, and the hue turns in
YIQ. The order of the four does not matter. Source: Haeberli, "Matrix operations for image
processing", 1993, as in ``color_twist`` of NVIDIA DALI.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from penstock.transforms.amounts import Amount, Share, Turns

Maps = NDArray[np.float32]

# Weights of red, green and blue in the grey of a colour (ITU-R BT.601), in each row.
GREY = np.tile([0.299, 0.587, 0.114], (3, 1))
_COLOUR = np.eye(3) - GREY
_YIQ = np.array([[0.299, 0.587, 0.114], [0.5959, -0.2746, -0.3213], [0.2115, -0.5227, 0.3112]])
_TURNED = np.linalg.inv(_YIQ)[:, 1:] @ np.array([[0, 1], [-1, 0]]) @ _YIQ[1:]  # by 90 degrees


@dataclass(kw_only=True, eq=False)
class ColourAmounts:
    """Amounts by which the colours of an image change at random.

    Args:
        brightness: b, for a factor from 1 - b to 1 + b.
        contrast: Likewise.
        saturation: Likewise.
        hue: h, for turns from -h to h; at most 0.5.
        p: Probability that an image is changed.
    """

    brightness: Amount = 0.2
    contrast: Amount = 0.2
    saturation: Amount = 0.2
    hue: Turns = 0.05
    p: Share = 0.5

    def maps(self, draws: NDArray[np.floating[Any]]) -> tuple[Maps, Maps]:
        """Return A and B, float32 [n, 3, 3] each, for numbers from 0 to 1, [4, n]."""
        amounts = np.array([self.brightness, self.contrast, self.saturation, self.hue])[:, None]
        least = np.maximum(1 - amounts, 0)
        factors = least + draws * (1 + amounts - least)
        factors[3] = (2 * draws[3] - 1) * self.hue
        return colour_maps(factors)


def colour_maps(factors: NDArray[Any]) -> tuple[Maps, Maps]:
    """Return A and B, float32 [n, 3, 3] each, for three factors and turns of the hue, [4, n]."""
    brightness, contrast, saturation, turns = factors.astype(np.float64)[..., None, None]
    angle = 2 * math.pi * turns
    colour = saturation * (np.cos(angle) * _COLOUR + np.sin(angle) * _TURNED)
    of_pixel = brightness * contrast * (GREY + colour)
    of_mean = brightness * (1 - contrast) * GREY
    return of_pixel.astype(np.float32), of_mean.astype(np.float32)


def recoloured(image: NDArray[Any], of_pixel: Maps, of_mean: Maps) -> NDArray[Any]:
    """Apply a map to uint8 or float32 [H, W, 3], or to greys [H, W, 1]; cut at black and white."""
    import cv2

    image = np.ascontiguousarray(image)
    if image.shape[2] == 1:  # equal colours stay equal, so one row of the map is enough
        of_pixel, of_mean = of_pixel[:1].sum(1, keepdims=True), of_mean[:1].sum(1, keepdims=True)
    offset = of_mean @ cv2.mean(image)[: image.shape[2]]
    changed: NDArray[Any] = cv2.transform(image, np.column_stack([of_pixel, offset]))
    changed = changed.reshape(image.shape)
    return changed if changed.dtype == np.uint8 else changed.clip(0, 1, out=changed)
