"""Images encoded anew, smaller, in tiles or as raw pixels: what packing writes."""

from __future__ import annotations

import functools
import threading
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field, fields, replace
from fractions import Fraction
from typing import TYPE_CHECKING, Any, Protocol

from datasets.sample import Record
from transforms.formats.image_pixels import image_field
from transforms.formats.sniff import read_header

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Image = NDArray[np.uint8]

DEFAULT_QUALITY = 95
# Fields that speak of the image's pixels by their place.
_PLACED = ("boxes", "keypoints", "mask")


class WholeDecoder(Protocol):
    """Decodes a file, or takes pixels."""

    def decode(self, data: Any) -> Image:
        """All pixels, uint8 [H, W, C]; ValueError for what is damaged."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Recode:
    """Changes the ``image`` of a record; from any thread. A function of record and arguments.

    Attributes:
        decode: Decodes images whole; upright, in the mode that raw images get.
        max_side: The longer side's pixels at most, or None.
        short_side: The shorter side's pixels at most, or None.
        quality: JPEG quality that every image is encoded anew with; None: only images that
            change are, at `DEFAULT_QUALITY`.
        tiled: Encode as tiled JPEG, see `transforms.formats.jpeg_tiles`.
        overviews: Tiled files carry smaller copies of the image, see `write_tiled`.
        tile_losslessly: Tiles a file without decoding it, or gives None, and it stays as it is;
            instead of all of the above.
        raw: Share of the records whose images are stored as decoded pixels; see `is_raw`.
        counts: What was done, with how many records.
    """

    decode: WholeDecoder
    max_side: int | None = None
    short_side: int | None = None
    quality: int | None = None
    tiled: bool = False
    overviews: bool = False
    tile_losslessly: Callable[[bytes], bytes | None] | None = None
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
        if is_raw(record.index, self.raw):
            return self._pixels(record, data), "raw"
        if self.tile_losslessly is not None:
            tiled = None if hasattr(data, "dtype") else self.tile_losslessly(bytes(data))
            return (data, "as they were") if tiled is None else (tiled, "tiled losslessly")
        if self.quality is None and not self.tiled and not self._shrinks(data):
            return data, "as they were"
        image = self._pixels(record, data)
        if image.shape[2] == 3 and _is_grey_jpeg(data):
            image = image[..., :1]  # decoded in colour, its planes are equal
        return self._encoded(image), "encoded anew"

    def _pixels(self, record: Record, data: Any) -> Image:
        import cv2

        image = self.decode.decode(data)
        height, width = image.shape[:2]
        size = self._size(height, width)
        if size != (height, width) or _is_turned(data):
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

    def _shrinks(self, data: Any) -> bool:
        if hasattr(data, "dtype"):
            height, width = data.shape[:2]
        else:
            header = read_header(bytes(data))
            height, width = header.height, header.width
        return self._size(height, width) != (height, width)

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
            from transforms.formats.jpeg_tiles import write_tiled

            return write_tiled(image, quality=quality, overviews=self.overviews)
        import numpy as np
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


def _is_grey_jpeg(data: Any) -> bool:
    if hasattr(data, "dtype"):
        return False
    header = read_header(bytes(data))
    return header.format == "JPEG" and header.components == 1


def _is_turned(data: Any) -> bool:
    return not hasattr(data, "dtype") and read_header(bytes(data)).orientation != 1
