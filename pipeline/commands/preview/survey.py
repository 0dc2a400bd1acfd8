"""What the data is like as a whole: sizes, classes, numbers of boxes, lengths."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from datasets.mix_index import united
from datasets.protocols import Storage
from datasets.sample import BadRecord, BadSample
from pipeline.commands.preview.excerpts import OWN
from pipeline.commands.preview.picture import channels_last
from transforms.formats.sniff import read_header

_READ = 64
_DRAWS = 1 << 16
_MOST_DRAWS = 5_000_000
_NUMBERS = (int, float, np.integer, np.floating)
_TURNED = 5  # from this EXIF orientation on, height and width change places


@dataclass(slots=True)
class Survey:
    """Figures of some records, none of which was decoded.

    Attributes:
        records: How many were looked at.
        total: How many there are; None: nobody knows.
        sizes: Width and height of each image.
        boxes: Number of boxes in each image.
        box_labels: Number of boxes by class id.
        lengths: Lengths of arrays of one axis, by field.
        numbers: Numbers that are no class ids, by field; NaN where a record has none.
    """

    records: int = 0
    total: int | None = None
    sizes: list[tuple[int, int]] = field(default_factory=list)
    boxes: list[int] = field(default_factory=list)
    box_labels: Counter[int] = field(default_factory=Counter)
    lengths: dict[str, list[int]] = field(default_factory=dict)
    numbers: dict[str, list[float]] = field(default_factory=dict)

    def add(self, fields: Mapping[str, Any]) -> None:
        """Count one record's fields, or a sample's."""
        self.records += 1
        size = _size_of(fields.get("image"))
        if size is not None:
            self.sizes.append(size)
        boxes = fields.get("boxes", fields.get("boxes_normalized"))
        if boxes is not None:
            self.boxes.append(len(boxes))
            self.box_labels.update(np.asarray(fields.get("box_labels", ())).reshape(-1).tolist())
        for name, value in fields.items():
            if isinstance(value, _NUMBERS) and name not in OWN | {"label"}:
                self.numbers.setdefault(name, []).append(float(value))
            if _is_series(value) and not name.startswith("box_") and name != "image":
                self.lengths.setdefault(name, []).append(len(value))

    def join(self, other: Survey, box_ids: NDArray[np.int64] | None) -> None:
        """Add another's figures.

        Args:
            other: The other, whose `total` is known as this one's is.
            box_ids: The class id here of each of the other's, int64 [C]; None: they are the same.
        """
        self.records += other.records
        self.total = (self.total or 0) + (other.total or 0)
        self.sizes += other.sizes
        self.boxes += other.boxes
        for number, count in other.box_labels.items():
            self.box_labels[united(number, box_ids)] += count
        for name, lengths in other.lengths.items():
            self.lengths.setdefault(name, []).extend(lengths)


def survey_storage(
    storage: Storage, records: int, keys: Mapping[str, str | None] | None = None
) -> Survey:
    """Look at records spread evenly over a storage.

    Args:
        storage: Where they lie.
        records: How many, at most.
        keys: New field names by field name.
    """
    count = len(storage)
    survey = Survey(total=count)
    chosen = np.unique(np.linspace(0, count - 1, min(records, count)).astype(np.int64))
    for start in range(0, len(chosen), _READ):
        for record in storage.read(chosen[start : start + _READ]):
            if not isinstance(record, BadRecord):
                named = {(keys or {}).get(k, k): value for k, value in record.fields.items()}
                survey.add({k: value for k, value in named.items() if k is not None})
    return survey


def survey_samples(samples: Iterable[Any], total: int | None) -> Survey:
    """Look at samples that have been read anyway."""
    survey = Survey(total=total)
    for sample in samples:
        if not isinstance(sample, BadSample):
            survey.add(sample)
    return survey


def _is_series(value: Any) -> bool:
    if isinstance(value, list):
        return all(isinstance(item, _NUMBERS) for item in value)
    return isinstance(value, np.ndarray) and value.ndim == 1


def _size_of(image: Any) -> tuple[int, int] | None:
    """Width and height of an image, of a file from its header; None where it has none."""
    if image is None:
        return None
    if isinstance(image, np.ndarray):
        shape = channels_last(image).shape
        return (shape[1], shape[0]) if len(shape) in (2, 3) else None
    try:
        header = read_header(bytes(image))
    except (ValueError, TypeError):
        return None
    size = header.width - header.padding, header.height
    return size[::-1] if header.orientation >= _TURNED else size


def class_counts(index: Any, count: int, column: str = "label") -> NDArray[np.int64] | None:
    """Records by class id, int64 [count]; None where the index has no such column."""
    if column not in index.columns:
        return None
    labels = np.asarray(index.column(column))
    return np.bincount(labels[(labels >= 0) & (labels < count)], minlength=count)


def drawn_counts(
    index: Any, sampler: Any, count: int, column: str = "label"
) -> tuple[NDArray[np.int64], int]:
    """What a sampler draws in epoch 0, by class id: int64 [count], and how many draws these are.

    The first 5 million draws of an epoch that is longer.
    """
    labels = np.asarray(index.column(column))
    draws = min(len(sampler), _MOST_DRAWS)
    found = np.zeros(count, np.int64)
    for start in range(0, draws, _DRAWS):
        drawn = labels[sampler.indices(0, start, min(start + _DRAWS, draws))]
        found += np.bincount(drawn[(drawn >= 0) & (drawn < count)], minlength=count)
    return found, draws
