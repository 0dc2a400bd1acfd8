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
        seconds: How long decoding took so far.
    """

    shape: tuple[int, int, int]
    decode: Callable[[Box | None], tuple[Image, int, int]]
    seconds: float = 0.0

    def whole(self) -> Image:
        """All pixels, uint8 [H, W, C].

        Raises:
            DamagedImageError: The image is damaged.
        """
        return self.around(None)[0]

    def around(self, box: Box | None) -> tuple[Image, int, int]:
        """The pixels of a box, and as many others as it is easier to decode than to leave.

        Args:
            box: A box within the image; None for all of it.

        Returns:
            uint8 [h, w, C], and the column and row of the whole image at which they begin.

        Raises:
            DamagedImageError: What had to be decoded is damaged.
        """
        start = time.perf_counter()
        try:
            return self.decode(box)
        except ValueError as error:
            raise DamagedImageError(str(error)) from None
        finally:
            self.seconds += time.perf_counter() - start
