"""The data that flows: records from a storage, samples, bad ones, and batches."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

Sample = dict[str, Any]
"""One decoded sample, a dict.

==============  ==================================================================
``image``       uint8 [H, W, C], RGB, 0..255
``label``       int, the class id
``mask``        integer [H, W], class ids
``boxes``       float32 [N, 4], xyxy, pixels
``box_labels``  int64 [N]
``keypoints``   float32 [K, 3], x, y in pixels and visibility 0, 1 or 2
``tokens``      int64 [T]
``features``    float32 [F]
``array``       any axes and dtype: audio, volumes, spectra
``index``       int, the record in this split
``key``         str, the record's name in its storage
``position``    int, the position in the epoch
``source``      int, the number of the source, where several are mixed
==============  ==================================================================

``index``, ``key`` and ``position`` are always there; of the rest, what the data has. Fields
of other names may be dicts and lists in turn, which ``collate=nested`` puts together.
"""

Batch = dict[str, Any]
"""What a loader yields: a dict of tensors whose first axis is the batch.

``image`` stays uint8 [B, H, W, C] until it is on the device. ``index``, ``position`` and
``epoch`` are int64 [B]; position and epoch together are a row's identity, from which whatever
is drawn for it follows. ``valid`` is bool [B] (False: padding, to be left out of loss and
metrics), and ``key`` is a `datasets.keys.Keys`, read as a list of B strings. A collate may leave
other fields as lists.

Where images are mixed on the device (mixup, cutmix), ``label_other`` int64 [B] is the class of
what was mixed in and ``label_weight`` float32 [B] the share of ``label``, 1 for rows that were
left alone. ``label`` stays what the record says.
"""


@dataclass(frozen=True, slots=True)
class Record:
    """What a storage holds for one index, not decoded.

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
