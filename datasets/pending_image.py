"""An image whose size is known and whose pixels are not decoded yet."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Image = NDArray[np.uint8]

Box = tuple[int, int, int, int]
"""x_min, y_min, x_max, y_max in pixels; the last two are outside."""


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
        seconds: How long decoding took so far.
    """

    shape: tuple[int, int, int]
    decode: Callable[[Box | None], tuple[Image, int, int]]
    reduce: Callable[[Box | None, int], tuple[Image, int, int]] | None = None
    seconds: float = 0.0

    def whole(self) -> Image:
        """All pixels, uint8 [H, W, C].

        Raises:
            DamagedImageError: The image is damaged.
        """
        return self.around(None)[0]

    def around(self, box: Box | None, factor: int = 1) -> tuple[Image, int, int]:
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

    def to_resize(self, box: Box, size: tuple[int, int]) -> tuple[Image, Box]:
        """The pixels of a box that will be resized at once, as small as `factor_for` allows.

        Edges of the box go to the nearest of the smaller pixels.

        Args:
            box: A box within the image.
            size: Height and width that it is resized to.

        Returns:
            uint8 [h, w, C], which is only read, and the box in the pixels of it.

        Raises:
            DamagedImageError: What had to be decoded is damaged.
        """
        factor = self.factor_for(box, size)
        pixels, left, top = self.around(box, factor)
        if factor > 1:
            box = smaller_box(box, factor)
        return pixels, (box[0] - left, box[1] - top, box[2] - left, box[3] - top)

    def _timed(self, decode: Callable[[], tuple[Image, int, int]]) -> tuple[Image, int, int]:
        start = time.perf_counter()
        try:
            return decode()
        except ValueError as error:
            raise DamagedImageError(str(error)) from None
        finally:
            self.seconds += time.perf_counter() - start


def smaller_box(box: Box, factor: int) -> Box:
    """A box of an image in the pixels of the image made smaller, edges rounded."""
    x_min, y_min, x_max, y_max = ((2 * edge + factor) // (2 * factor) for edge in box)
    return x_min, y_min, x_max, y_max
