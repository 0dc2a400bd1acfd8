"""What decoders of images share: files and decoded images of a record, decoded now or later."""

from __future__ import annotations

import functools
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from datasets.pending_image import PendingImage
from datasets.sample import Record, Sample
from transforms.box_rows import boxes_in_pixels
from transforms.formats.image_pixels import (
    array_around,
    check_array,
    check_size,
    decode_file,
    image_field,
)
from transforms.formats.mask_pixels import decode_mask
from transforms.formats.opencv_pixels import CHANNELS
from transforms.formats.sniff import read_header

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from transforms.formats.header import Header

    Image = NDArray[np.uint8]


class RecordDecoder(ABC):
    """Decodes the ``image`` of records; says of which images parts can be decoded.

    Args:
        name: The component, for messages.
        mode: ``RGB``, ``L`` or ``RGBA``.
        orientation: ``apply`` or ``ignore``.
        max_pixels: Larger files are refused.
        mask_colors: Colours of RGB masks, [r, g, b] by class id.
    """

    def __init__(
        self,
        name: str,
        *,
        mode: str,
        orientation: str,
        max_pixels: int,
        mask_colors: Sequence[Sequence[int]] | None = None,
    ) -> None:
        if mode not in CHANNELS:
            raise ValueError(f"{name}: mode {mode!r}, expected RGB, L or RGBA")
        if orientation not in ("apply", "ignore"):
            raise ValueError(f"{name}: orientation {orientation!r}, expected apply or ignore")
        self.mode = mode
        self.orientation = orientation
        self.max_pixels = max_pixels
        self._colours = {
            (red << 16) | (green << 8) | blue: number
            for number, (red, green, blue) in enumerate(mask_colors or ())
        }

    def __call__(self, record: Record) -> Sample:
        """Decode the record's ``image``, and its ``mask``; other fields pass unchanged.

        ``boxes_normalized``, shares of width and height, become ``boxes`` in pixels.

        Args:
            record: A record with an encoded ``image``, or one that is decoded: uint8 [H, W, C].

        Returns:
            The sample, with ``image`` uint8 [H, W, C], ``index`` and ``key``, and a ``mask``
            as integer [H, W]. What is decoded and has `mode` is passed on, if it may be written
            to.

        Raises:
            ValueError: There is no image, it is damaged or too large, or its mask is, or is of
                another size; one line.
        """
        return self._sample(record, self.decode(image_field(record)))

    def defer(self, record: Record) -> Sample:
        """Like a call, but an image of which parts can be decoded alone stays pending.

        Args:
            record: A record with an ``image``, encoded or decoded.

        Returns:
            The sample; its ``image`` is a `PendingImage` if `whole_because` has no reason.

        Raises:
            ValueError: There is no image, its header is damaged, or it is too large; where all
                of it is decoded, as in a call.
        """
        return self._sample(record, self._deferred(image_field(record)))

    def whole_because(self, image: Any) -> str | None:
        """Why an image, encoded or decoded, is decoded whole; None where its parts can be.

        Raises:
            ValueError: Its header is damaged.
        """
        is_decoded = hasattr(image, "dtype")
        return self._whole_because(None if is_decoded else read_header(bytes(image)))

    def decode(self, data: Any) -> Image:
        """Decode one file, all of it and at its own size.

        Args:
            data: The file's bytes, or pixels: uint8 [H, W, C], grey, RGB or RGBA.

        Returns:
            uint8 [H, W, C], 0..255, which may be written to; a new array unless pixels are
            given.

        Raises:
            ValueError: It is damaged, too large, or no image that we read; one line.
        """
        if hasattr(data, "dtype"):
            import numpy as np

            check_array(data)
            return np.require(array_around(data, self.mode, None)[0], requirements=("C", "W"))
        data = bytes(data)
        header = read_header(data)
        check_size(header, self.max_pixels)
        return decode_file(data, header, self.mode, self.orientation)

    def _sample(self, record: Record, image: Any) -> Sample:
        sample = {**record.fields, "image": image, "index": record.index, "key": record.key}
        if "boxes_normalized" in sample:
            sample["boxes"] = boxes_in_pixels(sample.pop("boxes_normalized"), image.shape)
        if "mask" in sample:
            mask = decode_mask(sample["mask"], colours=self._colours, max_pixels=self.max_pixels)
            if mask.shape != image.shape[:2]:
                raise ValueError(
                    f"its mask has {mask.shape[1]}x{mask.shape[0]} pixels, the image "
                    f"{image.shape[1]}x{image.shape[0]}"
                )
            sample["mask"] = mask
        return sample

    def _deferred(self, data: Any) -> Any:
        if hasattr(data, "dtype"):
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
        """See `whole_because`, of a file's header, or None for an image that is decoded."""

    @abstractmethod
    def _pending(self, data: bytes, header: Header) -> PendingImage:
        """A file that is not decoded whole."""
