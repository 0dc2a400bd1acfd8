"""Encode images again for packing: smaller, in tiles or as raw pixels."""

from __future__ import annotations

import functools
import threading
from collections import Counter
from dataclasses import dataclass, field, fields, replace
from fractions import Fraction
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from penstock.core.sample import Record
from penstock.transforms.decode.image.files import image_field, read_header
from penstock.transforms.decode.image.pixels import is_pixels

if TYPE_CHECKING:
    from penstock.transforms.decode.image.decoder import RecordDecoder

    Image = NDArray[np.uint8]

DEFAULT_QUALITY = 95
# Fields that refer to pixels of the image by place.
_PLACED = ("boxes", "keypoints", "mask")


@dataclass(frozen=True, slots=True, kw_only=True)
class Recode:
    """Change the ``image`` of records, from any thread.

    Attributes:
        decode: Decodes images whole; upright, in the mode of raw images.
        max_side: Maximum pixels of the longer side, or None.
        short_side: Maximum pixels of the shorter side, or None.
        quality: JPEG quality for all images; None encodes only images that change, at
            `DEFAULT_QUALITY`.
        tiled: Encode as tiled JPEG, see `transforms.decode.image.jpeg_tiles`.
        raw: Share of the records whose images are stored as decoded pixels; see `is_raw`.
        counts: Number of records by outcome.
    """

    decode: RecordDecoder
    max_side: int | None = None
    short_side: int | None = None
    quality: int | None = None
    tiled: bool = False
    raw: float = 0.0
    counts: Counter[str] = field(default_factory=Counter)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle without the counts."""
        names = [f.name for f in fields(self) if f.name not in ("counts", "_lock")]
        return functools.partial(Recode, **{name: getattr(self, name) for name in names}), ()

    def __call__(self, record: Record) -> Record:
        """Change a record's image; a record without an image passes.

        Raises ValueError if other fields hold places in an image whose size or orientation would
        change.
        """
        if "image" not in record.fields:
            return record
        image, done = self._recoded(record)
        with self._lock:
            self.counts[done] += 1
        return replace(record, fields={**record.fields, "image": image})

    def _recoded(self, record: Record) -> tuple[Any, str]:
        data = image_field(record)
        header = None if is_pixels(data) else read_header(bytes(data))
        height, width = data.shape[:2] if header is None else (header.height, header.width)
        raw = is_raw(record.index, self.raw)
        encodes = self.quality is not None or self.tiled
        if not raw and not encodes and self._size(height, width) == (height, width):
            return data, "as they were"
        image = self._pixels(record, data, turned=header is not None and header.orientation != 1)
        if raw:
            return image, "raw"
        if header is not None and header.components == 1 and image.shape[2] == 3:
            image = image[..., :1]  # a grey JPEG decoded in colour has equal planes
        return self._encoded(image), "encoded anew"

    def _pixels(self, record: Record, data: Any, *, turned: bool) -> Image:
        import cv2

        image = self.decode.decode(data)
        height, width = image.shape[:2]
        size = self._size(height, width)
        if size != (height, width) or turned:
            for name in _PLACED:
                if name in record.fields:
                    raise ValueError(
                        f"has {name!r} in pixels of its {width}x{height}, which another size or "
                        f"orientation would falsify; pack it as it is"
                    )
        if size == (height, width):
            return image
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

    def _encoded(self, image: Image) -> bytes:
        quality = self.quality or DEFAULT_QUALITY
        if self.tiled:
            from penstock.transforms.decode.image.jpeg_tiles import write_tiled

            return write_tiled(image, quality=quality)
        import simplejpeg

        grey = image.shape[2] == 1
        encoded: bytes = simplejpeg.encode_jpeg(
            np.ascontiguousarray(image),
            quality=quality,
            colorspace="GRAY" if grey else "RGB",
            colorsubsampling="Gray" if grey else "420",
        )
        return encoded


def is_raw(position: int, share: float) -> bool:
    """Return whether the record at a position is among the `share` stored raw.

    Of the first n records, ``floor(n * share)`` are raw, evenly spread. The result depends only on
    the position, so packing again gives the same file.
    """
    exact = Fraction(share).limit_denominator(1_000_000)
    return int((position + 1) * exact) > int(position * exact)
