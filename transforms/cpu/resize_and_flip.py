"""Resize images, and mirror them."""

from __future__ import annotations

from typing import Annotated, Any

import numpy as np
from annotated_types import Ge, Le

from penstock.core.registry import register
from penstock.transforms.cpu.window import Interpolation, Size, Window
from penstock.transforms.cpu.window_step import Side, Sides, WindowStep, sides_of


@register("transform", "resize")
class Resize(WindowStep):
    """Resize images to a size, or to a short or long side with their own aspect ratio.

    Masks take the nearest pixel. Give one of `size`, `short_side` and `long_side`.

    Args:
        size: Height and width, or one number for both.
        short_side: The shorter side, in pixels.
        long_side: The longer side, in pixels.
        interpolation: ``area`` averages where the image shrinks, ``linear`` is faster.
    """

    def __init__(
        self,
        *,
        size: Sides | None = None,
        short_side: Side | None = None,
        long_side: Side | None = None,
        interpolation: Interpolation = "area",
    ) -> None:
        given = {"size": size, "short_side": short_side, "long_side": long_side}
        if sum(value is not None for value in given.values()) != 1:
            named = ", ".join(f"{name}={value}" for name, value in given.items() if value)
            raise ValueError(
                f"resize: {named or 'no size'}, expected one of {', '.join(given)}; to choose "
                f"another one, set the first to null"
            )
        self._size = None if size is None else sides_of(size)
        self._short_side = short_side
        self._long_side = long_side
        self._interpolation = interpolation

    def window(self, size: Size, rng: np.random.Generator, boxes: Any) -> Window:
        """Return the whole image in its new size."""
        new = self._size
        if new is None:
            if self._short_side is not None:
                scale = self._short_side / min(size)
            else:
                assert self._long_side is not None
                scale = self._long_side / max(size)
            new = max(1, round(size[0] * scale)), max(1, round(size[1] * scale))
        return Window.of((0, 0, size[1], size[0]), new, interpolation=self._interpolation)


@register("transform", "horizontal_flip")
class HorizontalFlip(WindowStep):
    """Mirror images left to right; keypoints are swapped by ``augment.keypoints``.

    Args:
        p: Probability that an image is mirrored.
    """

    def __init__(self, *, p: Annotated[float, Ge(0), Le(1)] = 0.5) -> None:
        self._p = p

    def window(self, size: Size, rng: np.random.Generator, boxes: Any) -> Window:
        """Return the whole image, mirrored or not."""
        return Window.of((0, 0, size[1], size[0]), mirrored=bool(rng.random() < self._p))
