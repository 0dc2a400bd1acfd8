"""The first steps of an albumentations Compose, a crop or resize and flips, run without it.

The draws are those of albumentations' own classes, in the order in which Compose makes them; the
pixels are those of the same OpenCV calls, written where they are wanted. A crop is drawn from an
image's size, before there are pixels.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from datasets.pending_image import PendingImage
from transforms.image_head import ImageHead

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from datasets.pending_image import Box

    Image = NDArray[np.uint8]

# The release whose code the tests compare this with; in another one Compose does it all.
_VERSION = "2.0.8"
# Those whose box follows from the image's shape and draws alone, and whose pixels from the box.
_CROPS = frozenset(
    {
        "CenterCrop",
        "Crop",
        "RandomCrop",
        "RandomCropFromBorders",
        "RandomResizedCrop",
        "RandomSizedCrop",
    }
)
_CROP_MODULE = "albumentations.augmentations.crops.transforms"
_RESIZES = frozenset({"Resize"})
_RESIZE_MODULE = "albumentations.augmentations.geometric.resize"
_FLIPS = ("HorizontalFlip", "VerticalFlip")
_FLIP_MODULE = "albumentations.augmentations.geometric.flip"
# OpenCV's code by whether columns and rows are turned round.
_FLIP_CODES = {(True, False): 1, (False, True): 0, (True, True): -1}
_MAX_CHANNELS = 4  # beyond these albumentations calls OpenCV in pieces


class CompiledHead(ImageHead):
    """A crop or resize at the start of a Compose and the flips behind it; the rest runs as ever.

    Its Compose keeps state while it runs, so it belongs to one thread.

    Args:
        compose: A Compose without processors, for which `compile_head` found this.

    Attributes:
        crops: It begins with a crop, which needs no more than a part of a pending image.
    """

    def __init__(self, compose: Any) -> None:
        self._compose = compose
        self._first = compose.transforms[0]
        self.crops = _is(self._first, _CROP_MODULE, _CROPS)
        self._flips: list[tuple[Any, int]] = []
        for transform in compose.transforms[1:]:
            if not _is(transform, _FLIP_MODULE, _FLIPS):
                break
            self._flips.append((transform, _FLIPS.index(type(transform).__name__)))
        self._rest = compose.transforms[1 + len(self._flips) :]

    @staticmethod
    def takes(image: Any) -> bool:
        """Whether an image is one that the head can begin with: uint8 [H, W, 1..4], or pending."""
        if type(image) is PendingImage:
            return image.shape[2] <= _MAX_CHANNELS
        import numpy as np

        return (
            type(image) in (np.ndarray, np.memmap)
            and image.dtype == np.uint8
            and image.ndim == 3
            and 1 <= image.shape[2] <= _MAX_CHANNELS
        )

    def draw(self, image: Image | PendingImage) -> Callable[[Image | None], Image]:
        """Make the draws of crop, resize and flips, and what the decoder needs of the image.

        Returns:
            What makes the pixels, in `into` or in an array of its own; see a call.
        """
        first = self._first
        # Whether to run at all: Compose draws that even where p is 1.
        self._compose.py_random.random()
        params: dict[str, Any] | None = None
        if first.should_apply():
            params = first.get_params_dependent_on_data({"shape": image.shape}, {})
        turned = [False, False]
        for flip, axis in self._flips:
            if flip.should_apply():
                turned[axis] = not turned[axis]
        flip_code = _FLIP_CODES.get((turned[0], turned[1]))
        return functools.partial(self._pixels, self._part(image, params), flip_code)

    def _pixels(
        self,
        part: Callable[[], tuple[Image, Any, int]],
        flip_code: int | None,
        into: Image | None,
    ) -> Image:
        """Decode, crop, resize and flip as drawn."""
        import cv2
        import numpy as np

        pixels, size, interpolation = part()
        height, width, channels = pixels.shape
        resizes = size is not None and tuple(size) != (height, width)
        if resizes:
            height, width = size
        if into is not None and into.shape == (height, width, channels):
            target = into
        elif resizes or flip_code is not None:
            target = np.empty((height, width, channels), np.uint8)
        else:
            return np.ascontiguousarray(pixels)
        if resizes:
            cv2.resize(pixels, (width, height), dst=target, interpolation=interpolation)
            if flip_code is not None:
                cv2.flip(target, flip_code, dst=target)  # in place, while it is in the cache
        elif flip_code is not None:
            cv2.flip(pixels, flip_code, dst=target)
        else:
            target[...] = pixels
        return target

    def _part(
        self, image: Image | PendingImage, params: dict[str, Any] | None
    ) -> Callable[[], tuple[Image, Any, int]]:
        """What gives the cropped pixels, the size they are resized to, and in which way."""
        first = self._first
        if params is None:
            return lambda: (_whole(image), None, 0)
        if not self.crops:
            return lambda: self._to_size(_whole(image), (first.height, first.width))
        x_min, y_min, x_max, y_max = params["crop_coords"]
        height, width, _ = image.shape
        inside = 0 <= x_min < x_max <= width and 0 <= y_min < y_max <= height
        if not inside or params.get("pad_params") is not None:
            return lambda: (first.apply(_whole(image), **params), None, 0)
        size = getattr(first, "size", None)
        box = (int(x_min), int(y_min), int(x_max), int(y_max))
        if isinstance(image, PendingImage):
            return functools.partial(self._cropped, image.prepare(box, size), size)
        return functools.partial(self._cropped, lambda: (_whole(image), box), size)

    def _cropped(
        self, decode: Callable[[], tuple[Image, Box]], size: Any
    ) -> tuple[Image, Any, int]:
        pixels, box = decode()
        part = pixels[box[1] : box[3], box[0] : box[2]]
        return self._to_size(part, size) if size is not None else (part, None, 0)

    def _to_size(self, part: Image, size: Any) -> tuple[Image, Any, int]:
        first = self._first
        shrinks = part.shape[0] > size[0] or part.shape[1] > size[1]
        if shrinks and first.area_for_downscale is not None:
            import cv2

            return part, size, cv2.INTER_AREA
        return part, size, first.interpolation


def compile_head(compose: Any) -> CompiledHead | None:
    """The first steps of a Compose, compiled; None where it begins with another one."""
    import albumentations

    if albumentations.__version__ != _VERSION or not compose.transforms:
        return None
    first = compose.transforms[0]
    known = _is(first, _CROP_MODULE, _CROPS) or _is(first, _RESIZE_MODULE, _RESIZES)
    return CompiledHead(compose) if known else None


def _is(transform: Any, module: str, names: frozenset[str] | tuple[str, ...]) -> bool:
    """Whether a transform is of one of these classes; a subclass may do anything."""
    kind = type(transform)
    return kind.__module__ == module and kind.__name__ in names


def _whole(image: Image | PendingImage) -> Image:
    """All pixels, in one piece."""
    if isinstance(image, PendingImage):
        return image.whole()
    import numpy as np

    return np.ascontiguousarray(image)
