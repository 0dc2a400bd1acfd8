"""The data that flows: records from a storage, samples, bad ones, and batches."""

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
``labels``      float32 [C], 1 or 0 for each class, NaN where that is not known
``values``      float32 [K], what was measured, NaN where that is not known
``mask``        integer [H, W], class ids
``boxes``       float32 [N, 4], xyxy, pixels
``box_labels``  int64 [N]
``box_masks``   uint8 [N, H, W], 1 where the box's object is
``keypoints``   float32 [K, 3], x, y in pixels and visibility 0, 1 or 2
``tokens``      int64 [T]
``features``    float32 [F]
``array``       any axes and dtype: audio, volumes, spectra
``index``       int, the record in this split
``key``         str, the record's name in its storage
``position``    int, the position in the epoch
``source``      int, the number of the source, where several are mixed
``file_size``   int64 [2], height and width of the file's image, where `predict` asks
``to_image``    float64 [2, 3], affine map of x, y of the file to ``image``, where `predict` asks
==============  ==================================================================

``index``, ``key`` and ``position`` are always there; of the rest, what the data has. Fields
of other names may be dicts and lists in turn, which ``collate=nested`` puts together.
"""

STATED_SIZE = "stated_size"
"""Field of a record, int32 [2]: width and height of the image that label files state; 0: unknown.

The decoder compares it with the image and takes it away.
"""

CUT_TOKENS = "token_crop.cut_tokens"
"""Field of a sample that a transform has shortened: number of elements that were cut, int.

The loader removes the field before collating, and counts it.
"""

Batch = dict[str, Any]
"""One delivered batch: a dict of tensors whose first axis is the batch.

``image`` stays uint8 [B, H, W, C] until it is on the device. ``index``, ``position`` and
``epoch`` are int64 [B]; position and epoch together are a row's identity, from which whatever
is drawn for it follows. ``valid`` is bool [B] (False: padding, to be left out of loss and
metrics), and ``key`` is a `Keys`, read as a list of B strings. A collate may leave
other fields as lists.

Where images are mixed on the device (mixup, cutmix), ``label_other`` int64 [B] is the class of
what was mixed in and ``label_weight`` float32 [B] the share of ``label``, 1 for rows that were
left alone. ``label`` stays what the record says; ``labels`` and ``values``
are blended themselves.
"""


@dataclass(frozen=True, slots=True)
class Record:
    """One record of a storage, not decoded.

    Attributes:
        index: The index that was asked for.
        key: The record's name: unique in its storage and stable over copies of the data.
        fields: Encoded or raw values by sample key, such as ``{"image": b"...", "label": 3}``.
    """

    index: int
    key: str
    fields: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, eq=False)
class TextColumn:
    """The texts of many records in one field, of which many are the same.

    Attributes:
        texts: Different ones, objects [T], the last of them None.
        places: Where each record's stands among them, integer [n]; -1: it is None.
    """

    texts: NDArray[np.object_]
    places: NDArray[np.integer[Any]]

    def __len__(self) -> int:
        return len(self.places)

    def tolist(self) -> list[str | None]:
        """The text of each record."""
        found: list[str | None] = self.texts[self.places].tolist()
        return found


MAX_RECORD_BYTES = 1 << 30
"""What a record may take, unless ``dataset.max_record_bytes`` says otherwise."""


def too_large(size_bytes: int, max_bytes: int) -> str:
    """Say that a record has more bytes than it may."""
    return (
        f"has {size_bytes:,} bytes, more than dataset.max_record_bytes={max_bytes} allows; leave "
        f"it out, or set dataset.max_record_bytes={size_bytes}"
    )


# What compresses better, and takes more memory than a record may, is no data of anybody's: images
# do not compress at all, tables and texts 2 to 10 times.
_MOST_INFLATED = 16
_HARMLESS_BYTES = 1 << 26


def inflated_too_large(size_bytes: int, stored_bytes: int, max_bytes: int) -> str | None:
    """Say that what is read as a whole takes absurdly much once decompressed; None: it does not.

    Args:
        size_bytes: What it takes in memory, as its metadata says.
        stored_bytes: What it takes in the file.
        max_bytes: What a record may take; many honest ones together may take more, and little
            memory does no harm.
    """
    if size_bytes <= max(max_bytes, _HARMLESS_BYTES, _MOST_INFLATED * stored_bytes):
        return None
    return f"is compressed to {stored_bytes:,} bytes and {too_large(size_bytes, max_bytes)}"


@dataclass(frozen=True, slots=True)
class BadRecord:
    """A record that cannot be read; its neighbours in the same read are not affected.

    Attributes:
        index: The index that was asked for.
        key: The record's name in its storage.
        cause: One line that says what is wrong.
        ends_shard: It is damage that ends a shard of a stream: with it all records behind it are
            lost, of whichever split they were.
    """

    index: int
    key: str
    cause: str
    ends_shard: bool = False


class RecordError(ValueError):
    """Stored data is damaged or cannot be read; the message is the cause, one line."""


@dataclass(frozen=True, slots=True)
class BadSample:
    """A sample that cannot be had, and all that is needed to find it again.

    Attributes:
        index: The record in this split.
        key: The record's name in its storage.
        position: The position in the epoch that asked for it.
        cause: One line that says what is wrong.
        storage: Name and place of the storage, such as ``image_folder /data/train``.
    """

    index: int
    key: str
    position: int
    cause: str
    storage: str

    def __str__(self) -> str:
        return f"{self.storage}: {self.key!r} at position {self.position}: {self.cause}"


class Keys:
    """The keys of a batch, read as a list of strings; ``list(keys)`` is one.

    Training loops hardly look at them. Where records have numbers for names, as rows of tables
    and of arrays do, making the strings of a small batch takes a fifth of its time: each costs
    0.1 µs to make and to free, with the interpreter's lock held, and more on the way from a worker
    process.

    It is no `Sequence` by inheritance: libraries that rebuild those of a batch item by item, to
    move them to a device, leave it as it is.

    Args:
        values: The strings; with a pattern the numbers that they are made of, int64 [n].
        pattern: What `str.format` makes a key of, such as ``{}`` or ``row{:08}``.
    """

    __slots__ = ("_pattern", "_values")

    def __init__(self, values: list[str] | NDArray[np.int64], pattern: str | None = None) -> None:
        self._values = values
        self._pattern = pattern

    def __len__(self) -> int:
        return len(self._values)

    @overload
    def __getitem__(self, at: int) -> str: ...
    @overload
    def __getitem__(self, at: slice) -> Keys: ...
    def __getitem__(self, at: int | slice) -> str | Keys:
        values: Any = self._values[at]
        if isinstance(at, slice):
            return Keys(values, self._pattern)
        made: str = values if self._pattern is None else self._pattern.format(int(values))
        return made

    def __iter__(self) -> Iterator[str]:
        values: Any = self._values
        if self._pattern is None:
            return iter(values)
        show = str if self._pattern == "{}" else self._pattern.format  # plain ones need no format
        return map(show, values.tolist())

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
"""x_min, y_min, x_max, y_max in pixels; the last two are outside."""

Part = tuple["Image", int, int]
"""Pixels, and the column and row of the image at which they begin."""
_FACTORS = (8, 4, 2)


@dataclass(slots=True)
class PendingImage:
    """Stand in a sample for an image that is decoded where its crop is known.

    Attributes:
        shape: Height, width and channels of the whole image.
        decode: Decodes the part that a box needs, or everything for None: the pixels,
            uint8 [H, W, C], and the column and row at which they begin. Raises RecordError for
            damage.
        reduce: Decodes what a box needs, or everything for None, with both sides smaller by a
            factor of 2, 4 or 8, rounded up; returns like `decode`, in smaller pixels. None where
            pixels are not to be changed.
        seconds: How long decoding took so far.
    """

    shape: tuple[int, int, int]
    decode: Callable[[Box | None], Part]
    reduce: Callable[[Box | None, int], Part] | None = None
    seconds: float = 0.0

    def whole(self) -> Image:
        """Decode all pixels, uint8 [H, W, C].

        Raises:
            RecordError: The image is damaged.
        """
        return self.around(None)[0]

    def around(self, box: Box | None, factor: int = 1) -> Part:
        """Decode the pixels of a box, and as many others as it is easier to decode than to leave.

        Args:
            box: A box within the image, in its own pixels; None for all of it.
            factor: What `factor_for` gave: the pixels are those of the image with both sides
                smaller by so much, rounded up.

        Returns:
            uint8 [h, w, C], which may be a view of the record's own array and is only read, and
            the column and row of the whole image, or of the smaller one, at which they begin.

        Raises:
            RecordError: What had to be decoded is damaged.
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
        """Find how much smaller a box may be decoded that is resized at once.

        Both sides stay as long as those of `size`: pixels are left out, and none are made up.

        Args:
            box: A box within the image.
            size: Height and width that it is resized to.

        Returns:
            2, 4 or 8; 1 if it is too small for that, and where pixels are not to be changed.
        """
        if self.reduce is None:
            return 1
        fits = min((box[3] - box[1]) // size[0], (box[2] - box[0]) // size[1])
        return next((factor for factor in _FACTORS if factor <= fits), 1)

    def crop(self, box: Box, size: tuple[int, int] | None = None) -> tuple[Image, Box]:
        """Decode a box, as small as `factor_for` allows if it is resized at once.

        Edges of the box go to the nearest of the smaller pixels.

        Args:
            box: A box within the image.
            size: Height and width that it is resized to, if it is.

        Returns:
            uint8 [h, w, C], which is only read, and the box in the pixels of it.

        Raises:
            RecordError: What had to be decoded is damaged.
        """
        factor = 1 if size is None else self.factor_for(box, size)
        pixels, left, top = self.around(box, factor)
        if factor > 1:
            box = smaller_box(box, factor)
        return pixels, (box[0] - left, box[1] - top, box[2] - left, box[3] - top)


def smaller_box(box: Box, factor: int) -> Box:
    """Place a box in the pixels of the image made smaller, edges rounded."""
    x_min, y_min, x_max, y_max = ((2 * edge + factor) // (2 * factor) for edge in box)
    return x_min, y_min, x_max, y_max


@dataclass(slots=True)
class DrawnImage:
    """An augmented image of which every draw is made, and the pixels are not.

    Attributes:
        source: The image that it is made of.
        fill: Decodes and changes it: given an array of its shape, uint8 [H, W, C], it may write
            there, and returns what it wrote to. Raises RecordError like its source.
    """

    source: PendingImage
    fill: Callable[[Image | None], Image]


def on_pixels(transform: Callable[[Batch], Batch], batch: Batch) -> Batch:
    """Apply a batch transform; where it fails and images are files, say so instead.

    Raises:
        ValueError: The images are bytes.
        Exception: Whatever else the transform raises.
    """
    try:
        return transform(batch)
    except (TypeError, AttributeError):
        require_pixels(batch.get("image"))
        raise


def require_pixels(image: Any) -> None:
    """Refuse the bytes of a file, or a batch's list of them, in the place of pixels.

    Raises:
        ValueError: These are bytes.
    """
    one = image[0] if isinstance(image, list) and image else image
    if isinstance(one, bytes | bytearray | memoryview):
        raise ValueError(
            f"'image' is a file's {memoryview(one).nbytes:,} bytes, expected pixels; decode "
            f"it with dataset/decode=image"
        )
