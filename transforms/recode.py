"""Encode images anew, smaller, in tiles or as raw pixels, for packing."""

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
# Fields that speak of the image's pixels by their place.
_PLACED = ("boxes", "keypoints", "mask")


@dataclass(frozen=True, slots=True, kw_only=True)
class Recode:
    """Changes the ``image`` of a record; from any thread. A function of record and arguments.

    Attributes:
        decode: Decodes images whole; upright, in the mode that raw images get.
        max_side: The longer side's pixels at most, or None.
        short_side: The shorter side's pixels at most, or None.
        quality: JPEG quality that every image is encoded anew with; None: only images that
            change are, at `DEFAULT_QUALITY`.
        tiled: Encode as tiled JPEG, see `transforms.decode.image.jpeg_tiles`.
        overviews: Tiled files carry smaller copies of the image, see `write_tiled`.
        raw: Share of the records whose images are stored as decoded pixels; see `is_raw`.
        counts: What was done, with how many records.
    """

    decode: RecordDecoder
    max_side: int | None = None
    short_side: int | None = None
    quality: int | None = None
    tiled: bool = False
    overviews: bool = False
    raw: float = 0.0
    counts: Counter[str] = field(default_factory=Counter)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def __reduce__(self) -> tuple[Any, ...]:
        """It crosses to another process without its counts."""
        names = [f.name for f in fields(self) if f.name not in ("counts", "_lock")]
        return functools.partial(Recode, **{name: getattr(self, name) for name in names}), ()

    def __call__(self, record: Record) -> Record:
        """Change a record's image; a record without one passes.

        Raises:
            ValueError: The image is damaged, or fields speak of the pixels of one that would
                change its size.
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
            image = image[..., :1]  # a grey JPEG decoded in colour: its planes are equal
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
        """Height and width after shrinking, the other side rounded to the next pixel."""
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

            return write_tiled(image, quality=quality, overviews=self.overviews)
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
    """Whether the record at a position is among the `share` that is stored raw.

    Of the first n records ``floor(n * share)`` are, spread evenly: a function of the position
    alone, so that packing again gives the same file.
    """
    exact = Fraction(share).limit_denominator(1_000_000)
    return int((position + 1) * exact) > int(position * exact)
