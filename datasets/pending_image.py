"""An image whose size is known and whose pixels are not decoded yet."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Image = NDArray[np.uint8]

T = TypeVar("T")

Box = tuple[int, int, int, int]
"""x_min, y_min, x_max, y_max in pixels; the last two are outside."""

Part = tuple["Image", int, int]
"""Pixels, and the column and row of the image at which they begin."""
_FACTORS = (8, 4, 2)


class DamagedImageError(ValueError):
    """Pixels that were to be decoded later turn out to be damaged: a bad record, no mistake."""


@dataclass(slots=True)
class PendingImage:
    """What stands in a sample for an image that is decoded where its crop is known.

    Attributes:
        shape: Height, width and channels of the whole image.
        decode: Decodes the part that a box needs, or everything for None: the pixels,
            uint8 [H, W, C], and the column and row at which they begin. Raises ValueError for
            what is damaged.
        reduce: Decodes what a box needs, or everything for None, with both sides smaller by a
            factor of 2, 4 or 8, rounded up; returns like `decode`, in smaller pixels. None where
            pixels are not to be changed.
        cut: Makes what the decoder needs for a box; what it returns then does what `decode` does
            for that box. None where there is nothing to be made.
        seconds: How long decoding took so far.
    """

    shape: tuple[int, int, int]
    decode: Callable[[Box | None], Part]
    reduce: Callable[[Box | None, int], Part] | None = None
    cut: Callable[[Box], Callable[[], Part]] | None = None
    seconds: float = 0.0

    def whole(self) -> Image:
        """All pixels, uint8 [H, W, C].

        Raises:
            DamagedImageError: The image is damaged.
        """
        return self.around(None)[0]

    def around(self, box: Box | None, factor: int = 1) -> Part:
        """The pixels of a box, and as many others as it is easier to decode than to leave.

        Args:
            box: A box within the image, in its own pixels; None for all of it.
            factor: What `factor_for` gave: the pixels are those of the image with both sides
                smaller by so much, rounded up.

        Returns:
            uint8 [h, w, C], which may be a view of the record's own array and is only read, and
            the column and row of the whole image, or of the smaller one, at which they begin.

        Raises:
            DamagedImageError: What had to be decoded is damaged.
        """
        reduce = self.reduce
        if factor == 1:
            return self._timed(lambda: self.decode(box))
        assert reduce is not None
        return self._timed(lambda: reduce(box, factor))

    def factor_for(self, box: Box, size: tuple[int, int]) -> int:
        """How much smaller a box may be decoded that is resized at once.

        Both sides stay as long as those of `size`: pixels are left out, and none are made up.

        Args:
            box: A box within the image.
            size: Height and width that it is resized to.

        Returns:
            2, 4 or 8; 1 if it is too small for that, and where pixels are not to be changed.
        """
        if self.reduce is None:
            return 1
        fits = min((box[3] - box[1]) // size[0], (box[2] - box[0]) // size[1])
        return next((factor for factor in _FACTORS if factor <= fits), 1)

    def prepare(
        self, box: Box, size: tuple[int, int] | None = None
    ) -> Callable[[], tuple[Image, Box]]:
        """Prepare to decode a box, as small as `factor_for` allows if it is resized at once.

        Edges of the box go to the nearest of the smaller pixels.

        Args:
            box: A box within the image.
            size: Height and width that it is resized to, if it is.

        Returns:
            What decodes: it gives uint8 [h, w, C], which is only read, and the box in the pixels
            of it.

        Raises:
            DamagedImageError: What had to be decoded is damaged. What is returned raises it, too.
        """
        factor = 1 if size is None else self.factor_for(box, size)
        cut = self.cut
        if factor > 1 or cut is None:
            return lambda: _within(self.around(box, factor), box, factor)
        decode = self._timed(lambda: cut(box))
        return lambda: _within(self._timed(decode), box, factor)

    def _timed(self, decode: Callable[[], T]) -> T:
        start = time.perf_counter()
        try:
            return decode()
        except ValueError as error:
            raise DamagedImageError(str(error)) from None
        finally:
            self.seconds += time.perf_counter() - start


def _within(part: Part, box: Box, factor: int) -> tuple[Image, Box]:
    """Pixels, and a box of the whole image in them."""
    pixels, left, top = part
    if factor > 1:
        box = smaller_box(box, factor)
    return pixels, (box[0] - left, box[1] - top, box[2] - left, box[3] - top)


def smaller_box(box: Box, factor: int) -> Box:
    """A box of an image in the pixels of the image made smaller, edges rounded."""
    x_min, y_min, x_max, y_max = ((2 * edge + factor) // (2 * factor) for edge in box)
    return x_min, y_min, x_max, y_max


@dataclass(slots=True)
class DrawnImage:
    """An augmented image of which every draw is made, and the pixels are not.

    Attributes:
        source: The image that it is made of.
        fill: Decodes and changes it: given an array of its shape, uint8 [H, W, C], it may write
            there, and returns what it wrote to. Raises DamagedImageError like its source.
    """

    source: PendingImage
    fill: Callable[[Image | None], Image]
