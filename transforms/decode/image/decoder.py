"""Decode the images of records, at once or when their crop is known, with masks and boxes."""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import numpy as np
from annotated_types import Ge
from numpy.typing import NDArray

from penstock.core.contracts import Decoder
from penstock.core.registry import register
from penstock.core.sample import STATED_SIZE, PendingImage, Record, RecordError, Sample
from penstock.transforms.decode.image.header import Header, read_header
from penstock.transforms.decode.image.jpeg import decode_part
from penstock.transforms.decode.image.masks import decode_box_masks, decode_mask
from penstock.transforms.decode.image.pillow import decode_picture
from penstock.transforms.decode.image.pixels import (
    CHANNELS,
    convert,
    is_pixels,
    pixels_around,
    upright,
)

_ROUNDING = 0.02  # of a stated aspect ratio


@register("decode", "image")
@dataclass(kw_only=True, eq=False)
class ImageDecoder(Decoder):
    """Decode images of any kind to uint8 [H, W, C] in one mode.

    Alpha is dropped, not blended with a background. 16 bits are cut to the upper 8. Colour becomes
    grey with the weights of ITU-R BT.601. Colour profiles are not applied.

    Args:
        mode: ``RGB``, ``L`` (grey, one channel) or ``RGBA``.
        orientation: ``apply`` rotates the image by its EXIF orientation, ``ignore`` does not.
        region: ``exact`` decodes only the part of a baseline JPEG that a first crop needs, with the
            same pixels; damage elsewhere in the file goes unnoticed. ``whole`` decodes everything.
        max_pixels: Larger images are refused from their header, before memory is allocated.
        mask_colors: Colours or grey values of masks by class id, if they differ from the ids:
            [r, g, b] or a value for each, such as [0, 255].
    """

    mode: Literal["RGB", "L", "RGBA"] = "RGB"
    orientation: Literal["apply", "ignore"] = "apply"
    region: Literal["exact", "whole"] = "exact"
    max_pixels: Annotated[int, Ge(1)] = 100_000_000
    mask_colors: list[list[int] | int] | None = None

    def __post_init__(self) -> None:
        self._colours = {
            int.from_bytes([colour] * 3 if isinstance(colour, int) else colour): number
            for number, colour in enumerate(self.mask_colors or ())
        }

    def __call__(self, record: Record) -> Sample:
        """Decode the record's ``image`` to uint8 [H, W, C] and its ``mask`` to integer [H, W].

        ``boxes_normalized`` and ``keypoints_normalized``, shares of width and height, become
        ``boxes`` and ``keypoints`` in pixels. ``box_masks`` turn from run lengths into pixels.

        Raise `RecordError` for a damaged or too large file, and if sizes differ.
        """
        return self._sample(record, self.decode(image_field(record)))

    def defer(self, record: Record) -> Sample:
        """Decode like a call, but leave a `PendingImage` unless `whole_because` has a reason."""
        data = image_field(record)
        if is_pixels(data):
            height, width = data.shape[:2]
            decode = functools.partial(pixels_around, data, self.mode)
        else:
            data, header = self._opened(data)
            if self._whole_because(header) is not None:
                return self._sample(record, self._decoded(data, header))
            height, width = header.height, header.width
            decode = functools.partial(decode_part, data, header, self.mode)
        return self._sample(record, PendingImage((height, width, CHANNELS[self.mode]), decode))

    def decode(self, image: Any) -> NDArray[np.uint8]:
        """Decode all of a file, or convert pixels, to uint8 [H, W, C], writable."""
        if not is_pixels(image):
            return self._decoded(*self._opened(image))
        pixels = pixels_around(image, self.mode, None)[0]
        return np.require(pixels, requirements=("C", "W"))

    whole_image = decode

    def whole_because(self, image: Any) -> str | None:
        """Return why an image, file or pixels, is decoded whole; None if parts can be decoded."""
        return None if is_pixels(image) else self._whole_because(read_header(bytes(image)))

    def _whole_because(self, header: Header) -> str | None:
        if self.region == "whole":
            return "dataset.decode.region=whole"
        if header.format != "JPEG":
            return f"{header.format}, only parts of a JPEG can be decoded"
        if header.unit is None:
            return "a progressive or unusual JPEG"
        turned = self.orientation == "apply" and header.orientation != 1
        return "its EXIF orientation is not upright" if turned else None

    def _opened(self, image: Any) -> tuple[bytes, Header]:
        data = bytes(image)
        header = read_header(data)
        width, height = header.width, header.height
        if not 0 < width * height <= self.max_pixels:
            raise RecordError(
                f"{width}x{height} is {width * height:,} pixels, expected 1 to "
                f"{self.max_pixels:,}; if the file is not damaged, raise dataset.decode.max_pixels"
            )
        return data, header

    def _decoded(self, data: bytes, header: Header) -> NDArray[np.uint8]:
        if header.picture is None:
            image = decode_part(data, header, self.mode)[0]
        else:
            image = convert(decode_picture(header.picture, alpha=self.mode == "RGBA"), self.mode)
        if header.format == "TIFF":  # Pillow has rotated it
            if self.orientation == "ignore" and header.orientation != 1:
                raise RecordError("a rotated TIFF; it needs dataset.decode.orientation=apply")
        elif self.orientation == "apply":
            image = upright(image, header.orientation)
        return np.require(image, requirements=("C", "W"))

    def _sample(self, record: Record, image: Any) -> Sample:
        sample = {**record.fields, "image": image, "index": record.index, "key": record.key}
        height, width = image.shape[:2]
        if "box_masks" in sample:
            sample["box_masks"] = decode_box_masks(sample["box_masks"], (height, width))
        boxes, points = (sample.pop(f"{name}_normalized", None) for name in ("boxes", "keypoints"))
        if STATED_SIZE in sample:
            shares = boxes is not None or points is not None
            stated = sample.pop(STATED_SIZE)
            _check_stated_size(stated, (height, width), shares, self.orientation)
        elif boxes is None and "boxes" in sample:
            _check_boxes(sample["boxes"], (height, width))
        if boxes is not None:
            sides = np.array([width, height, width, height], np.float32)
            sample["boxes"] = _rows_of(boxes, 4) * sides
        if points is not None:
            sample["keypoints"] = _rows_of(points, 3) * np.array([width, height, 1], np.float32)
        if "mask" in sample:
            mask = decode_mask(sample["mask"], colours=self._colours, max_pixels=self.max_pixels)
            if mask.shape != (height, width):
                raise RecordError(
                    f"its mask has {mask.shape[1]}x{mask.shape[0]} pixels, not {width}x{height}"
                )
            sample["mask"] = mask
        return sample


def image_field(record: Record) -> Any:
    """Return the record's ``image``, a file or pixels; raise `RecordError` if missing or text."""
    data = record.fields.get("image")
    if data is None or isinstance(data, str):
        found = f"the text {data[:80]!r}" if data else f"none of {', '.join(record.fields)}"
        raise RecordError(
            f"no field 'image' to decode but {found}; rename the field of bytes or pixels with "
            f"dataset.keys, or name a column of paths: dataset.storage.image_column=<its name>"
        )
    return data


def _check_stated_size(stated: Any, shape: tuple[int, int], shares: bool, orientation: str) -> None:
    """Refuse an image of another size than `stated`, or, for `shares`, of the other orientation."""
    (height, width), (stated_width, stated_height) = shape, map(int, stated)
    alike = functools.partial(math.isclose, rel_tol=_ROUNDING)
    straight = alike(stated_width * height, stated_height * width)
    turned = not straight and alike(stated_width * width, stated_height * height)
    is_equal = (width, height) == (stated_width, stated_height)
    if not stated_width or is_equal or (shares and not turned):
        return
    other = "ignore" if orientation == "apply" else "apply"
    raise RecordError(
        f"its annotations state an image of {stated_width}x{stated_height} pixels, the image has "
        f"{width}x{height}; correct the stated size, scale label files with "
        f"dataset.annotations.rescale=true, or, if one is turned by its EXIF orientation, type "
        f"dataset.decode.orientation={other}"
    )


def _check_boxes(boxes: Any, shape: tuple[int, int]) -> None:
    """Refuse boxes in pixels, [N, 4], that begin beyond the right or bottom edge of the image."""
    height, width = shape
    corners = _rows_of(boxes, 4)
    outside = (corners[:, 0] >= width) | (corners[:, 1] >= height)
    if outside.any():
        box = ", ".join(f"{edge:g}" for edge in corners[outside][0].tolist())
        raise RecordError(
            f"its box [{box}] lies outside of its image of {width}x{height} pixels; correct it, or "
            f"state the size of the image that it is of"
        )


def _rows_of(values: Any, count: int) -> NDArray[np.float32]:
    """Return boxes or keypoints as float32 [N, count]."""
    try:
        return np.asarray(values, np.float32).reshape(-1, count)
    except (TypeError, ValueError):
        raise RecordError(f"boxes or keypoints are not rows of {count} numbers") from None
