"""Small images in every format and mode that decoders must read."""

from __future__ import annotations

import io

import cv2
import numpy as np
from PIL import Image


def picture(height: int = 90, width: int = 120) -> np.ndarray:
    """A smooth picture with edges, uint8 RGB; nothing in it is symmetric."""
    y, x = np.mgrid[0:height, 0:width]
    image = np.stack([x * 255 // width, y * 255 // height, (x + y) * 255 // (width + height)], -1)
    image[height // 4 : height // 2, width // 8 : width // 3] = (250, 20, 60)
    return image.astype(np.uint8)


RGB = Image.fromarray(picture())
ALPHA = Image.fromarray(np.dstack([picture(), picture()[..., 0]]))


def encode(image: Image.Image, kind: str, **options: object) -> bytes:
    file = io.BytesIO()
    image.save(file, kind, **options)
    return file.getvalue()


def pillow(data: bytes, mode: str = "RGB") -> np.ndarray:
    array = np.array(Image.open(io.BytesIO(data)).convert(mode))
    return array if array.ndim == 3 else array[..., None]


JPEGS = {
    "420": encode(RGB, "JPEG", quality=90),
    "422": encode(RGB, "JPEG", subsampling=1),
    "444": encode(RGB, "JPEG", subsampling=0),
    "progressive": encode(RGB, "JPEG", progressive=True),
    "grey": encode(RGB.convert("L"), "JPEG"),
    "cmyk, Adobe's inverted": encode(RGB.convert("CMYK"), "JPEG"),
    "rgb": encode(RGB, "JPEG", keep_rgb=True),
    "optimized": encode(RGB, "JPEG", optimize=True),
    "411": cv2.imencode(
        ".jpg", picture(), [cv2.IMWRITE_JPEG_SAMPLING_FACTOR, cv2.IMWRITE_JPEG_SAMPLING_FACTOR_411]
    )[1].tobytes(),
}
OTHERS = {
    f"{kind} {image.mode}": encode(image, kind)
    for kind, images in {
        "PNG": [RGB, ALPHA, RGB.convert("L"), ALPHA.convert("LA"), RGB.convert("1"),
                RGB.quantize(32), RGB.quantize(4)],
        "BMP": [RGB, RGB.convert("L"), RGB.convert("1"), RGB.quantize(32)],
        "TIFF": [RGB, ALPHA, RGB.convert("L"), ALPHA.convert("LA"), RGB.convert("1"),
                 RGB.quantize(32), RGB.convert("CMYK")],
    }.items()
    for image in images
} | {
    "WebP RGB": encode(RGB, "WEBP", lossless=True),
    "WebP RGBA": encode(ALPHA, "WEBP", lossless=True, exact=True),
    "WebP lossy": encode(RGB, "WEBP", quality=80),
    "PNG P tRNS": encode(RGB.quantize(32), "PNG", transparency=3),
    "PNG L tRNS": encode(RGB.convert("L"), "PNG", transparency=20),
    "PNG RGB tRNS": encode(RGB, "PNG", transparency=(250, 20, 60)),
    "TIFF lzw": encode(RGB, "TIFF", compression="tiff_lzw"),
    "TIFF deflate": encode(RGB, "TIFF", compression="tiff_adobe_deflate"),
    "TIFF JPEG": encode(RGB, "TIFF", compression="jpeg"),
    "GIF P": encode(RGB.quantize(32), "GIF"),
    "GIF transparent": encode(RGB.quantize(32), "GIF", transparency=3),
    "AVIF RGB": encode(RGB, "AVIF"),
    "AVIF RGBA": encode(ALPHA, "AVIF"),
    "JPEG 2000 RGB": encode(RGB, "JPEG2000"),
    "JPEG 2000 L": encode(RGB.convert("L"), "JPEG2000"),
}  # fmt: skip
