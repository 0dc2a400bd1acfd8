"""The data types between the stages: records, samples, bad records and batches."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

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


@dataclass(slots=True)
class Record:
    """One undecoded record of a storage; `fields` are encoded or raw values by sample key."""

    index: int
    key: str
    fields: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, eq=False)
class TextColumn:
    """The texts of many records in one field, without duplicates.

    `texts` are the distinct texts, objects [T], the last one None; `places` the index of each
    record's text, integer [n], -1 for None.
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
    """A record that cannot be read, for a one-line `cause`.

    With `ends_shard`, all later records of the stream's shard are lost, in every split.
    """

    index: int
    key: str
    cause: str
    ends_shard: bool = False


class RecordError(ValueError):
    """Stored data is damaged or cannot be read; the message is the cause, one line."""


@dataclass(frozen=True, slots=True)
class BadSample:
    """A sample that cannot be made; `storage` is its storage's name and path.

    `index` is the record in this split, `position` the position in the epoch, `cause` one line.
    """

    index: int
    key: str
    position: int
    cause: str
    storage: str

    def __str__(self) -> str:
        return f"{self.storage}: {self.key!r} at position {self.position}: {self.cause}"


class Keys:
    """The keys of a batch, read as a list of strings, which are made on first use.

    Not a `Sequence`: libraries that move batches to a device rebuild sequences item by item.

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

    def __getitem__(self, at: int | slice) -> Any:
        values = self.values[at]
        if isinstance(at, slice):
            return Keys(values, self.pattern)
        return values if self.pattern is None else self.pattern.format(int(values))

    def __iter__(self) -> Iterator[str]:
        if self.pattern is None:
            return iter(self.values)
        numbers = self.values if isinstance(self.values, range) else self.values.tolist()
        return map(self.pattern.format, numbers)

    def __eq__(self, other: Any) -> bool:
        return isinstance(other, list | Keys) and list(self) == list(other)

    def __repr__(self) -> str:
        return repr(list(self))


Box = tuple[int, int, int, int]
"""x_min, y_min, x_max, y_max in pixels; the maxima are exclusive."""

Part = tuple["Image", int, int]
"""Pixels, and the image column and row of the first pixel."""


@dataclass(slots=True)
class PendingImage:
    """An image of `shape` [H, W, C] in a sample, decoded once its crop is known.

    `decode` decodes the pixels of a box, or all for None; `seconds` is the time spent so far.
    `into` is memory for the final pixels, if their shape fits.
    """

    shape: tuple[int, int, int]
    decode: Callable[[Box | None], Part]
    seconds: float = 0.0
    into: Image | None = None

    def whole(self) -> Image:
        """Decode all pixels, uint8 [H, W, C]."""
        return self.around(None)[0]

    def around(self, box: Box | None) -> Part:
        """Decode the pixels of a box, and neighbours that are cheaper to decode than to skip.

        Returns:
            uint8 [h, w, C], read-only, maybe a view of the record's array; and the column and row
            of its first pixel in the image.
        """
        start = time.perf_counter()
        try:
            return self.decode(box)
        finally:
            self.seconds += time.perf_counter() - start


def require_pixels(image: Any) -> None:
    """Raise ValueError if an image is the bytes of a file, or a batch is a list of such bytes."""
    one = image[0] if isinstance(image, list) and image else image
    if isinstance(one, bytes | bytearray | memoryview):
        raise ValueError(
            f"'image' is a file's {memoryview(one).nbytes:,} bytes, expected pixels; decode "
            f"it with dataset/decode=image"
        )
