"""What OpenCV decodes, as it is stored, and its pixels in another mode."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Image = NDArray[np.uint8]

CHANNELS = {"RGB": 3, "L": 1, "RGBA": 4}


def imdecode(data: bytes, format_name: str) -> NDArray[Any]:
    """Decode with cv2 as it is stored: no rotation, all channels and bits, BGR order."""
    import cv2
    import numpy as np

    try:
        image = cv2.imdecode(np.frombuffer(data, np.uint8), cv2.IMREAD_UNCHANGED)
    except cv2.error as error:
        raise ValueError(f"damaged {format_name}: {error.err or 'it cannot be decoded'}") from None
    if image is None:
        raise ValueError(f"damaged {format_name}: it cannot be decoded")
    return image


def convert(image: NDArray[Any], mode: str) -> Image:
    """Turn grey [H, W], BGR or BGRA of uint8 into `mode`, uint8 [H, W, C]."""
    import cv2
    import numpy as np

    stored = "GRAY" if image.ndim == 2 else {3: "BGR", 4: "BGRA"}[image.shape[2]]
    wanted = {"RGB": "RGB", "L": "GRAY", "RGBA": "RGBA"}[mode]
    if stored != wanted:
        image = cv2.cvtColor(np.ascontiguousarray(image), getattr(cv2, f"COLOR_{stored}2{wanted}"))
    return image if image.ndim == 3 else image[..., None]
