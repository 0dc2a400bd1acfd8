"""Decode the images of records, at once or when their crop is known, with masks and boxes."""

from __future__ import annotations

import functools
from abc import abstractmethod
from collections.abc import Sequence
from typing import Annotated, Any, Literal

import numpy as np
from annotated_types import Ge
from numpy.typing import NDArray

from penstock.core.contracts import Decoder
from penstock.core.registry import register
from penstock.core.sample import STATED_SIZE, PendingImage, Record, RecordError, Sample
from penstock.transforms.decode.image.files import check_size, decode_file, image_field, read_header
from penstock.transforms.decode.image.header import Header
from penstock.transforms.decode.image.jpeg import decode_part
from penstock.transforms.decode.image.masks import (
    check_boxes,
    check_stated_size,
    decode_box_masks,
    decode_mask,
    rows_of,
)
from penstock.transforms.decode.image.pixels import CHANNELS, array_around, check_array, is_pixels

Image = NDArray[np.uint8]


class RecordDecoder(Decoder):
    """Decode the ``image`` of records, or leave it pending if parts can be decoded."""

    def __init__(
        self,
        *,
        mode: str,
        orientation: str,
        max_pixels: int,
        mask_colors: Sequence[Sequence[int] | int] | None = None,
    ) -> None:
        self.mode = mode
        self.orientation = orientation
        self.max_pixels = max_pixels
        self._colours = {
            int.from_bytes([colour] * 3 if isinstance(colour, int) else colour): number
            for number, colour in enumerate(mask_colors or ())
        }

    def __call__(self, record: Record) -> Sample:
        """Decode the record's ``image`` to uint8 [H, W, C] and its ``mask`` to integer [H, W].

        ``boxes_normalized`` and ``keypoints_normalized``, shares of width and height, become
        ``boxes`` and ``keypoints`` in pixels. ``box_masks`` turn from run lengths into pixels. All
        refer to the decoded image, upright by default. Other fields pass unchanged.

        Raises:
            RecordError: The image is missing, an image or mask is damaged or too large, or the
                sizes of image, mask and annotations differ.
        """
        return self._sample(record, self.decode(image_field(record)))

    def defer(self, record: Record) -> Sample:
        """Decode like a call, but leave a `PendingImage` unless `whole_because` has a reason."""
        return self._sample(record, self._deferred(image_field(record)))

    def whole_because(self, image: Any) -> str | None:
        """Return why an image, file or pixels, is decoded whole; None if parts can be decoded."""
        return self._whole_because(None if is_pixels(image) else read_header(bytes(image)))

    def decode(self, data: Any) -> Image:
        """Decode all of a file, or convert pixels, to uint8 [H, W, C], writable.

        Raises:
            RecordError: The image is damaged, too large, or of an unknown format.
        """
        if is_pixels(data):
            check_array(data)
            return np.require(array_around(data, self.mode, None)[0], requirements=("C", "W"))
        data = bytes(data)
        header = read_header(data)
        check_size(header, self.max_pixels)
        return decode_file(data, header, self.mode, self.orientation)

    def _sample(self, record: Record, image: Any) -> Sample:
        sample = {**record.fields, "image": image, "index": record.index, "key": record.key}
        if "box_masks" in sample:
            sample["box_masks"] = decode_box_masks(sample["box_masks"], image.shape)
        boxes, points = (sample.pop(f"{name}_normalized", None) for name in ("boxes", "keypoints"))
        if STATED_SIZE in sample:
            check_stated_size(
                sample.pop(STATED_SIZE),
                image.shape,
                scaled=boxes is not None or points is not None,
                orientation=self.orientation,
            )
        elif boxes is None and "boxes" in sample:
            check_boxes(sample["boxes"], image.shape)
        if boxes is not None:
            sample["boxes"] = _in_pixels(boxes, image.shape)
        if points is not None:
            keypoints = rows_of(points, 3).copy()
            keypoints[:, :2] *= np.array(image.shape[1::-1], np.float32)
            sample["keypoints"] = keypoints
        if "mask" in sample:
            mask = decode_mask(sample["mask"], colours=self._colours, max_pixels=self.max_pixels)
            if mask.shape != image.shape[:2]:
                raise RecordError(
                    f"its mask has {mask.shape[1]}x{mask.shape[0]} pixels, the image "
                    f"{image.shape[1]}x{image.shape[0]}"
                )
            sample["mask"] = mask
        return sample

    def _deferred(self, data: Any) -> Any:
        if is_pixels(data):
            if self._whole_because(None) is not None:
                return self.decode(data)
            check_array(data)
            shape = (*data.shape[:2], CHANNELS[self.mode])
            return PendingImage(shape, functools.partial(array_around, data, self.mode))
        data = bytes(data)
        header = read_header(data)
        check_size(header, self.max_pixels)
        if self._whole_because(header) is not None:
            return decode_file(data, header, self.mode, self.orientation)
        return self._pending(data, header)

    @abstractmethod
    def _whole_because(self, header: Header | None) -> str | None:
        """Return `whole_because` for a file's header, or for None, which means pixels."""

    @abstractmethod
    def _pending(self, data: bytes, header: Header) -> PendingImage:
        """Return the pending image of a file."""


Mode = Literal["RGB", "L", "RGBA"]


@register("decode", "image")
class ImageDecoder(RecordDecoder):
    """Decode images of any kind to uint8 [H, W, C] in one mode.

    Grey, palette, alpha, CMYK and 16-bit images all become `mode`. Alpha is dropped, not blended
    with a background. 16 bits are cut to the upper 8. Colour becomes grey with the weights of
    ITU-R BT.601. Colour profiles are not applied.

    Args:
        mode: ``RGB``, ``L`` (grey, one channel) or ``RGBA``.
        orientation: ``apply`` rotates the image by its EXIF orientation, ``ignore`` keeps the
            pixels as stored.
        region: ``exact`` decodes only the part of a baseline JPEG that a first crop needs, with the
            same pixels; damage elsewhere in the file goes unnoticed. ``whole`` decodes everything.
        max_pixels: Larger images are refused from their header, before memory is allocated.
        mask_colors: Colours or grey values of masks by class id, if they differ from the ids:
            [r, g, b] or a value for each, such as [0, 255].
    """

    def __init__(
        self,
        *,
        mode: Mode = "RGB",
        orientation: Literal["apply", "ignore"] = "apply",
        region: Literal["exact", "whole"] = "exact",
        max_pixels: Annotated[int, Ge(1)] = 100_000_000,
        mask_colors: list[list[int] | int] | None = None,
    ) -> None:
        super().__init__(
            mode=mode, orientation=orientation, max_pixels=max_pixels, mask_colors=mask_colors
        )
        self.region = region

    def whole_image(self, image: Any) -> Image:
        """Decode an image for a cache; a call then passes the pixels unchanged."""
        return self.decode(image)

    def _whole_because(self, header: Header | None) -> str | None:
        if self.region == "whole":
            return "dataset.decode.region=whole"
        if header is None:
            return None
        if header.format != "JPEG":
            return f"{header.format}, only parts of a JPEG can be decoded"
        if header.scan is None:
            return "a progressive or unusual JPEG"
        if self.orientation == "apply" and header.orientation != 1:
            return "its EXIF orientation is not upright"
        return None

    def _pending(self, data: bytes, header: Header) -> PendingImage:
        shape = (header.height, header.width, CHANNELS[self.mode])
        return PendingImage(shape, functools.partial(decode_part, data, header, self.mode))


def _in_pixels(shares: NDArray[np.float32], shape: tuple[int, ...]) -> NDArray[np.float32]:
    """Convert boxes from shares of an image's sides, [N, 4], to pixels."""
    height, width = shape[:2]
    sides = np.array([width, height, width, height], np.float32)
    return rows_of(shares, 4) * sides
