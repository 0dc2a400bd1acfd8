"""Encode images again for packing: smaller, in tiles or as raw pixels."""

from __future__ import annotations

from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any

import numpy as np
from numpy.typing import NDArray

from penstock.core.sample import Record
from penstock.transforms.decode.image.decoder import ImageDecoder, image_field
from penstock.transforms.decode.image.header import read_header
from penstock.transforms.decode.image.jpeg_tiles import encode_jpeg, write_tiled
from penstock.transforms.decode.image.pixels import is_pixels

# Fields that refer to pixels of the image by place.
_PLACED = ("boxes", "keypoints", "mask")


@dataclass(frozen=True, slots=True, kw_only=True)
class Recode:
    """Change the ``image`` of records, from any thread.

    A `quality` applies to all images; None encodes only images that change, at 95. `raw` is the
    share of the records whose images are stored as decoded pixels; see `is_raw`.
    """

    decode: ImageDecoder
    max_side: int | None = None
    short_side: int | None = None
    quality: int | None = None
    tiled: bool = False
    raw: float = 0.0

    def __call__(self, record: Record) -> Record:
        """Change a record's image; raise ValueError if other fields are places in the old one."""
        if "image" not in record.fields:
            return record
        return replace(record, fields={**record.fields, "image": self._recoded(record)})

    def _recoded(self, record: Record) -> Any:
        data = image_field(record)
        header = None if is_pixels(data) else read_header(bytes(data))
        height, width = data.shape[:2] if header is None else (header.height, header.width)
        raw = is_raw(record.index, self.raw)
        encodes = self.quality is not None or self.tiled
        if not raw and not encodes and self._size(height, width) == (height, width):
            return data
        turned = header is not None and header.orientation != 1
        image = self._resized(record, self.decode.decode(data), turned=turned)
        if raw:
            return image
        if header is not None and header.components == 1:
            image = image[..., :1]  # a grey JPEG decoded in colour has equal planes
        encode = write_tiled if self.tiled else encode_jpeg
        return encode(image, quality=self.quality or 95)

    def _resized(
        self, record: Record, image: NDArray[np.uint8], *, turned: bool
    ) -> NDArray[np.uint8]:
        height, width = image.shape[:2]
        size = self._size(height, width)
        placed = [name for name in _PLACED if name in record.fields]
        if placed and (size != (height, width) or turned):
            raise ValueError(
                f"has {placed[0]!r} in pixels of its {width}x{height}, which another size or "
                f"orientation would falsify; pack it as it is"
            )
        if size == (height, width):
            return image
        import cv2

        small = cv2.resize(image, size[::-1], interpolation=cv2.INTER_AREA)
        return small.reshape(*size, image.shape[2])

    def _size(self, height: int, width: int) -> tuple[int, int]:
        """Return height and width after shrinking, rounded to the nearest pixel."""
        for most, side in ((self.max_side, max), (self.short_side, min)):
            have = side(height, width)
            if most is not None and have > most:
                height, width = (
                    max(1, (2 * length * most + have) // (2 * have)) for length in (height, width)
                )
        return height, width


def is_raw(position: int, share: float) -> bool:
    """Return whether the record at a position is among the `share` stored raw, evenly spread."""
    exact = Fraction(share).limit_denominator(1_000_000)
    return int((position + 1) * exact) > int(position * exact)
