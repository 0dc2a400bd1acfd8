"""The first steps of an albumentations Compose, run without it, and the rest as ever."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Image = NDArray[np.uint8]


class ImageHead(ABC):
    """A Compose's first steps, whose draws are made before there are pixels."""

    _rest: list[Any]  # the steps that follow it

    def __call__(self, image: Any, into: Image | None = None) -> Image:
        """What ``compose(image=...)["image"]`` gives for the decoded image.

        Args:
            image: What the head takes. Of a pending image, what the crop needs is decoded.
            into: uint8 [H, W, C]. If nothing follows the head and the result is of this shape,
                it is written here.

        Returns:
            uint8 [H, W, C]; `into`, if it was written to.

        Raises:
            DamagedImageError: What had to be decoded is damaged.
            Exception: Whatever a transform raises.
        """
        pixels = self.draw(image)
        if not self._rest:
            return pixels(into)
        data: dict[str, Any] = {"image": pixels(None)}
        for transform in self._rest:
            data = transform(**data)
        result: Image = data["image"]
        return result

    @property
    def draws_first(self) -> bool:
        """Whether `draw` makes every draw of the Compose."""
        return not self._rest

    @abstractmethod
    def draw(self, image: Any) -> Callable[[Image | None], Image]:
        """Make the draws of the head; what is returned makes the pixels, see a call."""
