"""Generated JPEGs with the fine structure of photographs, in the kinds that cameras write."""

from __future__ import annotations

import functools
import io

import cv2
import numpy as np
from PIL import Image


@functools.cache
def scene(height: int, width: int, seed: int = 0) -> np.ndarray:
    """Colour at every scale, edges and noise, uint8 RGB."""
    rng = np.random.default_rng([seed, height, width])
    pixels = np.zeros((height, width, 3), np.float32)
    for cells in (3, 9, 40):
        coarse = rng.normal(0, 1, (cells, cells, 3)).astype(np.float32)
        pixels += cv2.resize(coarse, (width, height), interpolation=cv2.INTER_CUBIC)
    pixels[height // 3 :, width // 4 : width // 2] *= -1
    pixels += rng.normal(0, 0.15, pixels.shape)
    return np.clip(128 + 55 * pixels, 0, 255).astype(np.uint8)


SAMPLINGS = {
    "420": cv2.IMWRITE_JPEG_SAMPLING_FACTOR_420,
    "422": cv2.IMWRITE_JPEG_SAMPLING_FACTOR_422,
    "440": cv2.IMWRITE_JPEG_SAMPLING_FACTOR_440,
    "444": cv2.IMWRITE_JPEG_SAMPLING_FACTOR_444,
    "411": cv2.IMWRITE_JPEG_SAMPLING_FACTOR_411,
}


def photograph(
    height: int,
    width: int,
    *,
    sampling: str = "420",
    interval: int = 0,
    progressive: bool = False,
    quality: int = 90,
) -> bytes:
    """A JPEG of a scene; `sampling` may be ``grey``, `interval` is that of restart markers."""
    image = scene(height, width)[..., ::-1]
    options = [cv2.IMWRITE_JPEG_QUALITY, quality, cv2.IMWRITE_JPEG_RST_INTERVAL, interval]
    options += [cv2.IMWRITE_JPEG_PROGRESSIVE, int(progressive)]
    if sampling == "grey":
        image = cv2.cvtColor(image, cv2.COLOR_BGR2GRAY)
    else:
        options += [cv2.IMWRITE_JPEG_SAMPLING_FACTOR, SAMPLINGS[sampling]]
    return cv2.imencode(".jpg", image, options)[1].tobytes()


def turned(height: int, width: int, orientation: int) -> bytes:
    """A JPEG whose EXIF block gives an orientation."""
    exif = Image.Exif()
    exif[0x0112] = orientation
    file = io.BytesIO()
    Image.fromarray(scene(height, width)).save(file, "JPEG", exif=exif, quality=90)
    return file.getvalue()
