"""The data types between the stages: records, samples, bad records and batches."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, overload

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Image = NDArray[np.uint8]


Sample = dict[str, Any]
"""One decoded sample, a dict.

==============  ==================================================================
``image``       uint8 [H, W, C], RGB, 0..255
``label``       int, the class id
``labels``      float32 [C], 1 or 0 for each class, NaN if unknown
``values``      float32 [K], measured values, NaN if unknown
``mask``        integer [H, W], class ids
``boxes``       float32 [N, 4], xyxy, pixels
``box_labels``  int64 [N]
``box_masks``   uint8 [N, H, W], 1 on the object of the box
``keypoints``   float32 [K, 3], x, y in pixels and visibility 0, 1 or 2
``tokens``      int64 [T]
``features``    float32 [F]
``array``       any shape and dtype: audio, volumes, spectra
``index``       int, the record in this split
``key``         str, the record's name in its storage
``position``    int, the position in the epoch
``source``      int, the number of the source in a mix
``file_size``   int64 [2], height and width of the file's image, for `predict`
``to_image``    float64 [2, 3], affine map of x, y from file to ``image``, for `predict`
==============  ==================================================================

Every sample has ``index``, ``key`` and ``position``; other fields depend on the data. Fields of
other names may be nested dicts and lists, which ``collate=nested`` merges.
"""

STATED_SIZE = "stated_size"
"""Record field, int32 [2]: image width and height according to label files; 0 if unknown.

The decoder compares the field with the image and removes it.
"""

CUT_TOKENS = "token_crop.cut_tokens"
"""Sample field: the number of elements that a transform cut off, int.

The loader counts and removes the field before collating.
"""

Batch = dict[str, Any]
"""One delivered batch: a dict of tensors whose first axis is the batch.

``image`` stays uint8 [B, H, W, C] until it is on the device. ``index``, ``position`` and ``epoch``
are int64 [B]; all random draws for a row follow from its epoch and position. ``valid`` is
bool [B]; loss and metrics skip rows with False, which are padding. ``key`` is a `Keys`, read as a
list of B strings. A collate may leave other fields as lists.

Mixing on the device (mixup, cutmix) adds ``label_other``, int64 [B], the class of the mixed-in
image, and ``label_weight``, float32 [B], the share of ``label``, 1 for unmixed rows. ``label``
stays unchanged, while ``labels`` and ``values`` are blended.
"""


@dataclass(frozen=True, slots=True)
class Record:
    """One undecoded record of a storage.

    Attributes:
        index: The requested index.
        key: The record's name: unique in its storage and equal in copies of the data.
        fields: Encoded or raw values by sample key, such as ``{"image": b"...", "label": 3}``.
    """

    index: int
    key: str
    fields: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, eq=False)
class TextColumn:
    """The texts of many records in one field, without duplicates.

    Attributes:
        texts: The distinct texts, objects [T]; the last one is None.
        places: Index of each record's text in `texts`, integer [n]; -1 for None.
    """

    texts: NDArray[np.object_]
    places: NDArray[np.integer[Any]]

    def __len__(self) -> int:
        return len(self.places)

    def tolist(self) -> list[str | None]:
        """Return the text of each record."""
        found: list[str | None] = self.texts[self.places].tolist()
        return found


MAX_RECORD_BYTES = 1 << 30
"""Default of ``dataset.max_record_bytes``."""


def too_large(size_bytes: int, max_bytes: int) -> str:
    """Return the message for a record above the size limit."""
    return (
        f"has {size_bytes:,} bytes, more than dataset.max_record_bytes={max_bytes} allows; leave "
        f"it out, or set dataset.max_record_bytes={size_bytes}"
    )


@dataclass(frozen=True, slots=True)
class BadRecord:
    """A record that cannot be read; other records of the same read are unaffected.

    `index` is the requested index, and `cause` is one line. With `ends_shard`, the damage ends a
    shard of a stream: all later records of the shard are lost, in every split.
    """

    index: int
    key: str
    cause: str
    ends_shard: bool = False


class RecordError(ValueError):
    """Stored data is damaged or cannot be read; the message is the cause, one line."""


@dataclass(frozen=True, slots=True)
class BadSample:
    """A sample that cannot be made, with the information to find its record.

    `index` is the record in this split, `position` the position in the epoch, `cause` one line, and
    `storage` the name and path of the storage, such as ``image_folder /data/train``.
    """

    index: int
    key: str
    position: int
    cause: str
    storage: str

    def __str__(self) -> str:
        return f"{self.storage}: {self.key!r} at position {self.position}: {self.cause}"


class Keys:
    """The keys of a batch, read as a list of strings; ``list(keys)`` returns a list.

    Training loops rarely read keys. Formatting the numeric keys of tables and arrays early takes a
    fifth of the time of a small batch. Not a `Sequence`: libraries that move batches to a device
    rebuild sequences item by item.

    Args:
        values: The strings, or with `pattern` their numbers, int64 [n] or a range.
        pattern: A `str.format` pattern for one number, such as ``{}`` or ``row{:08}``.
    """

    __slots__ = ("pattern", "values")

    def __init__(
        self, values: list[str] | NDArray[np.int64] | range, pattern: str | None = None
    ) -> None:
        self.values: Any = values
        self.pattern = pattern

    def __len__(self) -> int:
        return len(self.values)

    @overload
    def __getitem__(self, at: int) -> str: ...
    @overload
    def __getitem__(self, at: slice) -> Keys: ...
    def __getitem__(self, at: int | slice) -> str | Keys:
        values = self.values[at]
        if isinstance(at, slice):
            return Keys(values, self.pattern)
        made: str = values if self.pattern is None else self.pattern.format(int(values))
        return made

    def __iter__(self) -> Iterator[str]:
        if self.pattern is None:
            return iter(self.values)
        show = str if self.pattern == "{}" else self.pattern.format  # str is faster than format
        return map(show, self.values if isinstance(self.values, range) else self.values.tolist())

    def __eq__(self, other: Any) -> bool:
        return isinstance(other, list | Keys) and list(self) == list(other)

    __hash__ = None  # type: ignore[assignment]

    def __add__(self, other: Any) -> list[str]:
        return [*self, *other]

    def __radd__(self, other: Any) -> list[str]:
        return [*other, *self]

    def __repr__(self) -> str:
        return repr(list(self))


Box = tuple[int, int, int, int]
"""x_min, y_min, x_max, y_max in pixels; the maxima are exclusive."""

Part = tuple["Image", int, int]
"""Pixels, and the image column and row of the first pixel."""
_FACTORS = (8, 4, 2)


@dataclass(slots=True)
class PendingImage:
    """An image in a sample that is decoded once its crop is known.

    Attributes:
        shape: Height, width and channels of the whole image.
        decode: Decodes the pixels of a box, or all for None. Returns uint8 [H, W, C] and the column
            and row of the first pixel; raises RecordError for damage.
        reduce: Like `decode`, with both sides smaller by a factor of 2, 4 or 8, rounded up. None if
            the pixels must stay unchanged.
        seconds: Time spent decoding so far.
    """

    shape: tuple[int, int, int]
    decode: Callable[[Box | None], Part]
    reduce: Callable[[Box | None, int], Part] | None = None
    seconds: float = 0.0

    def whole(self) -> Image:
        """Decode all pixels, uint8 [H, W, C]; raise RecordError for a damaged image."""
        return self.around(None)[0]

    def around(self, box: Box | None, factor: int = 1) -> Part:
        """Decode the pixels of a box, and neighbours that are cheaper to decode than to skip.

        `box` is in full-size pixels; None is the whole image. `factor`, from `factor_for`, reduces
        both sides, rounded up.

        Returns:
            uint8 [h, w, C], read-only, maybe a view of the record's array; and the column and row
            of its first pixel in the reduced image.

        Raises:
            RecordError: The decoded data is damaged.
        """
        start = time.perf_counter()
        try:
            if factor == 1:
                return self.decode(box)
            assert self.reduce is not None
            return self.reduce(box, factor)
        finally:
            self.seconds += time.perf_counter() - start

    def factor_for(self, box: Box, size: tuple[int, int]) -> int:
        """Return the factor, 1, 2, 4 or 8, by which to reduce a box that is resized to `size`.

        The reduced sides stay at least as long as `size`, height and width, so the resize never
        upsamples. The factor is 1 if the pixels must stay unchanged.
        """
        if self.reduce is None:
            return 1
        fits = min((box[3] - box[1]) // size[0], (box[2] - box[0]) // size[1])
        return next((factor for factor in _FACTORS if factor <= fits), 1)

    def crop(self, box: Box, size: tuple[int, int] | None = None) -> tuple[Image, Box]:
        """Decode a box, reduced by `factor_for` if it is then resized to `size`, height and width.

        Returns:
            uint8 [h, w, C], read-only, and the box in its pixels, edges rounded.

        Raises:
            RecordError: The decoded data is damaged.
        """
        factor = 1 if size is None else self.factor_for(box, size)
        pixels, left, top = self.around(box, factor)
        if factor > 1:
            box = smaller_box(box, factor)
        return pixels, (box[0] - left, box[1] - top, box[2] - left, box[3] - top)


def smaller_box(box: Box, factor: int) -> Box:
    """Return the box in the pixels of the reduced image, edges rounded."""
    x_min, y_min, x_max, y_max = ((2 * edge + factor) // (2 * factor) for edge in box)
    return x_min, y_min, x_max, y_max


@dataclass(slots=True)
class DrawnImage:
    """An augmented image whose random draws are made and whose pixels are pending.

    Attributes:
        source: The original image.
        fill: Decodes and augments the image. Given an array of its shape, uint8 [H, W, C], it may
            write there; it returns the array with the result. Raises RecordError.
    """

    source: PendingImage
    fill: Callable[[Image | None], Image]


def on_pixels(transform: Callable[[Batch], Batch], batch: Batch) -> Batch:
    """Apply a batch transform; raise a clear ValueError if it fails because images are bytes."""
    try:
        return transform(batch)
    except (TypeError, AttributeError):
        require_pixels(batch.get("image"))
        raise


def require_pixels(image: Any) -> None:
    """Raise ValueError if an image is the bytes of a file, or a batch is a list of such bytes."""
    one = image[0] if isinstance(image, list) and image else image
    if isinstance(one, bytes | bytearray | memoryview):
        raise ValueError(
            f"'image' is a file's {memoryview(one).nbytes:,} bytes, expected pixels; decode "
            f"it with dataset/decode=image"
        )
