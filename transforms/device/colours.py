"""Brightness, contrast, saturation and hue, as in torchvision, by NumPy and by torch.

All functions overwrite floats from 0 to `white` and return them: arrays [H, W, 3] of one image, or
tensors [n, 3, H, W] with a factor [n, 1, 1, 1] for each.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    import torch

Pixels = NDArray[np.float32]

LUMA = (0.299, 0.587, 0.114)
"""Weights of red, green and blue (ITU-R BT.601)."""


def grey_of(pixels: Pixels) -> Pixels:
    """Return the brightness of an image, [H, W, 1]."""
    import cv2

    grey: Any = cv2.cvtColor(pixels, cv2.COLOR_RGB2GRAY)
    return grey.reshape(*pixels.shape[:2], 1)


def brighten(pixels: Pixels, factor: float, white: float) -> Pixels:
    """Multiply by a factor."""
    pixels *= factor
    return np.clip(pixels, 0, white, out=pixels)


def contrast(pixels: Pixels, factor: float, white: float) -> Pixels:
    """Blend with the mean grey of the image; 0 is that grey, 1 the image."""
    mean = grey_of(pixels).mean()
    pixels *= factor
    pixels += (1 - factor) * mean
    return np.clip(pixels, 0, white, out=pixels)


def saturate(pixels: Pixels, factor: float, white: float) -> Pixels:
    """Blend with the grey image; 0 is grey, 1 the image."""
    grey = grey_of(pixels)
    grey *= 1 - factor
    pixels *= factor
    pixels += grey
    return np.clip(pixels, 0, white, out=pixels)


def turn(pixels: Pixels, turns: float, white: float) -> Pixels:
    """Shift the hue of HSV by turns, -0.5 .. 0.5; keep saturation and value."""
    import cv2

    hsv: Any = cv2.cvtColor(pixels, cv2.COLOR_RGB2HSV)
    hsv[..., 0] = (hsv[..., 0] + 360 * turns) % 360
    result: Any = cv2.cvtColor(hsv, cv2.COLOR_HSV2RGB)
    return np.clip(result, 0, white, out=result)


def greys_of(pixels: torch.Tensor) -> torch.Tensor:
    """Return the brightness of images, [n, 1, H, W]."""
    red, green, blue = pixels.split(1, 1)
    return (red * LUMA[0]).add_(green, alpha=LUMA[1]).add_(blue, alpha=LUMA[2])


def brightened(pixels: torch.Tensor, factor: torch.Tensor, white: float) -> torch.Tensor:
    """Do what `brighten` does."""
    return pixels.mul_(factor).clamp_(0, white)


def contrasted(pixels: torch.Tensor, factor: torch.Tensor, white: float) -> torch.Tensor:
    """Do what `contrast` does."""
    import torch

    offset = (1 - factor) * greys_of(pixels).mean((1, 2, 3), keepdim=True)
    return torch.addcmul(offset, pixels, factor, out=pixels).clamp_(0, white)


def saturated(pixels: torch.Tensor, factor: torch.Tensor, white: float) -> torch.Tensor:
    """Do what `saturate` does."""
    return pixels.lerp_(greys_of(pixels), 1 - factor).clamp_(0, white)


def turned(pixels: torch.Tensor, turns: torch.Tensor, white: float) -> torch.Tensor:
    """Do what `turn` does.

    Convert back from hue, value and chroma by f(n) = V - C max(0, min(k, 4 - k, 1)) with
    k = (n + 6 H) mod 6 and n = 5, 3, 1 for red, green and blue, without branches.
    """
    import torch

    red, green, blue = pixels.unbind(1)
    value = torch.maximum(red, green).maximum(blue)
    chroma = value - torch.minimum(red, green).minimum(blue)
    inverse = 1 / chroma.clamp(min=1e-8 * white)
    sixths = (red - green).mul_(inverse).add_(4)
    sixths = (blue - red).mul_(inverse).add_(2).where(value == green, sixths)
    sixths = (green - blue).mul_(inverse).where(value == red, sixths)
    del inverse
    sixths += 6 * turns[:, 0]
    for plane, number in zip((red, green, blue), (5, 3, 1), strict=True):
        torch.add(sixths, number, out=plane).remainder_(6)
        torch.minimum(plane, 4 - plane, out=plane).clamp_(0, 1).mul_(chroma)
        torch.sub(value, plane, out=plane)
    return pixels.clamp_(0, white)
