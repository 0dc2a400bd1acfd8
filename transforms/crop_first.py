"""The first crop, drawn from an image's size before there are pixels.

The draws are those of albumentations' own classes, in the order in which Compose makes them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from datasets.pending_image import Box, PendingImage

    Image = NDArray[np.uint8]

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
_MODULE = "albumentations.augmentations.crops.transforms"


def first_crop(compose: Any) -> Any:
    """The transform with which a Compose begins, if it can be drawn before decoding, else None."""
    first = compose.transforms[0]
    kind = type(first)  # a subclass may do anything
    return first if kind.__module__ == _MODULE and kind.__name__ in _CROPS else None


def compose_pending(compose: Any, image: PendingImage) -> Image:
    """What ``compose(image=...)`` gives for the decoded image, decoding what its crop needs.

    Args:
        compose: A Compose without processors, for which `first_crop` has a crop.
        image: The image.

    Returns:
        uint8 [H, W, C].

    Raises:
        DamagedImageError: What had to be decoded is damaged.
        Exception: Whatever a transform raises.
    """
    compose.py_random.random()  # whether to run at all: Compose draws that even where p is 1
    data: dict[str, Any] = {"image": _crop(first_crop(compose), image)}
    for transform in compose.transforms[1:]:
        data = transform(**data)
    result: Image = data["image"]
    return result


def _crop(crop: Any, image: PendingImage) -> Image:
    """What ``crop(image=...)["image"]`` gives; the steps of BasicTransform.__call__ for images."""
    import numpy as np

    if not crop.should_apply():
        return image.whole()
    shaped = {"image": np.broadcast_to(np.uint8(0), image.shape)}  # a shape and no memory
    params = crop.update_transform_params(params=crop.get_params(), data=shaped)
    params |= crop.get_params_dependent_on_data(params=params, data=shaped)
    x_min, y_min, x_max, y_max = params["crop_coords"]
    height, width, _ = image.shape
    inside = 0 <= x_min < x_max <= width and 0 <= y_min < y_max <= height
    box: Box | None = None
    if inside and params.get("pad_params") is None:
        box = (int(x_min), int(y_min), int(x_max), int(y_max))
    pixels, left, top = image.around(box)
    params["crop_coords"] = (x_min - left, y_min - top, x_max - left, y_max - top)
    return np.ascontiguousarray(crop.apply(pixels, **params))
