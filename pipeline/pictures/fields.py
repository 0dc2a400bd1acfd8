"""Tell a sample in words: its class, numbers, texts, the beginning of arrays, a table's columns."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from penstock.core.contracts import Storage
from penstock.core.sample import BadRecord, BadSample, Record
from penstock.pipeline.config.errors import listing
from penstock.transforms.decode.table import TableDecoder
from penstock.transforms.table_statistics import TableStatistics

OWN = frozenset({"index", "key", "position", "epoch", "valid", "num_valid"})
OF_TABLES = frozenset({"features", "categories", "target"})
_TOLD_FIRST = frozenset("image mask boxes keypoints label label_other label_weight".split())
_MOST_FIELDS, _MOST_VALUES, _MOST_LETTERS, _MOST_COLUMNS = 14, 20, 160, 24
_LEAST_SHARE = 0.005
_BACKGROUND = ("background", "bg", "_background_")


@dataclass(frozen=True, slots=True)
class Classes:
    """Names of the classes of a field.

    Attributes:
        names: By id; None where they have none.
        ignored: Ids that no loss counts.
    """

    names: Sequence[str] | None = None
    ignored: Collection[int] = ()

    def name(self, number: int) -> str:
        """Name a class."""
        if self.names is not None and 0 <= number < len(self.names):
            return self.names[number]
        return str(number)

    def is_background(self, number: int) -> bool:
        """Whether a class stands for nothing in particular."""
        if self.names is None:
            return number == 0
        return self.name(number).lower() in _BACKGROUND


def lines_of(sample: Mapping[str, Any], classes: Mapping[str, Classes]) -> tuple[str, ...]:
    """Tell a sample: class, size and targets in a line, then every field of its own.

    Args:
        sample: A sample, or a row of a batch.
        classes: Names by field.
    """
    first = []
    if "label" in sample:
        first.append(_class_text(sample, classes.get("label", Classes())))
    image = sample.get("image")
    if isinstance(image, np.ndarray | torch.Tensor) and image.ndim >= 2:
        first.append(f"{image.shape[1]} × {image.shape[0]} pixels")
    if "boxes" in sample:
        first.append(f"boxes: {len(sample['boxes'])}")
    if "keypoints" in sample:
        visible = np.asarray(sample["keypoints"]).reshape(-1, 3)[:, 2] > 0
        first.append(f"keypoints: {visible.sum()} of {len(visible)} visible")
    if "mask" in sample and np.ndim(sample["mask"]) == 2:
        named = classes.get("mask", Classes())
        counts = pixel_counts(sample["mask"])
        total = counts.total()
        shares = [f"{named.name(n)} {share_text(k / total)}" for n, k in counts.most_common()]
        first.append(f"pixels: {shortened(', '.join(shares))}")
    told = [
        line
        for name, value in sample.items()
        if name not in OWN | _TOLD_FIRST and not name.startswith("box_")
        for line in _field_lines(name, value, classes.get(name))
    ]
    lines = [" · ".join(first)] if first else []
    return *lines, *_at_most(_MOST_FIELDS, told, "fields")


def _at_most(count: int, lines: list[str], what: str) -> list[str]:
    left = len(lines) - count
    return [*lines[:count], f"… and {left} more {what}"] if left > 0 else lines


def pixel_counts(mask: Any) -> Counter[int]:
    """Count the pixels of each id in a mask [H, W]."""
    ids, counts = np.unique(np.asarray(mask), return_counts=True)
    return Counter(dict(zip(ids.tolist(), counts.tolist(), strict=True)))


def share_text(share: float) -> str:
    """Write a share in percent, with as many digits as tell a small one from nothing."""
    if share == 0:
        return "0%"
    return f"{share:.1%}" if share >= 0.001 else f"{share * 100:.1g}%"


def columns_of(table: TableStatistics) -> list[str]:
    """Tell each column of a table: its name, how it is read, its range or commonest categories."""
    numbers = [c for c in (*table.numeric, table.target) if c is not None]
    told = [
        f"{'target ' if c is table.target else ''}{c.name}: number, {c.low:,.4g} to {c.high:,.4g}, "
        f"median {c.quartiles[1]:,.4g}{_gaps(c.missing)}"
        for c in numbers
    ]
    told += [
        f"{c.name}: category, {listing(c.values, 6)}{f', {c.others:,} rarer' * (c.others > 0)}"
        f"{_gaps(c.missing)}"
        for c in table.categorical
    ]
    told += [f"{name}: left out, {why}" for name, why in table.left_out]
    return _at_most(_MOST_COLUMNS, told, "columns")


def _gaps(missing: int) -> str:
    return f", {missing:,} missing" if missing else ""


def _class_text(sample: Mapping[str, Any], classes: Classes) -> str:
    """Name a sample's class; where it is mixed with another one, both with their shares."""
    label, other = sample["label"], sample.get("label_other")
    share = float(sample.get("label_weight", 1)) if np.ndim(label) == 0 else 1.0
    if other is None or share == 1 or label == other:
        return label_text(label, classes)
    names = label_text(label, classes), label_text(other, classes)
    return f"{share:.1%} {names[0]} + {1 - share:.1%} {names[1]}"


def _field_lines(name: str, value: Any, classes: Classes | None = None) -> list[str]:
    """Write a line about a field, or one about each of those that are nested in it."""
    if classes is not None and classes.names:
        values = np.asarray(value)
        text = label_text(value, classes) if not values.ndim else _numbers_text(values, classes)
        return [shortened(f"{name}: {text}")]
    if isinstance(value, Mapping):
        return [line for key in value for line in _field_lines(f"{name}.{key}", value[key])]
    return [field_text(name, value)]


def _numbers_text(values: NDArray[Any], classes: Classes) -> str:
    """Tell a number for each class [C]: of 1 and 0 which are there, else each by its name."""
    marks = bool((np.isin(values, (0, 1)) | np.isnan(values)).all())
    told = [
        classes.name(number) if marks and value == 1 else f"{classes.name(number)} {_number(value)}"
        for number, value in enumerate(values.tolist())
        if value != 0 or not marks
    ]
    return ", ".join(told) or "none"


def label_text(label: Any, classes: Classes) -> str:
    """Name a class; of several that are mixed, each with its share."""
    values = np.asarray(label)
    if values.size == 1:
        value = values.item()
        return classes.name(int(value)) if values.dtype.kind in "iub" else str(value)
    if values.dtype.kind == "f" and values.ndim == 1:
        order = np.argsort(-values, kind="stable").tolist()
        shares = [(i, float(values[i])) for i in order if values[i] > _LEAST_SHARE]
        if len(shares) == 1 and abs(shares[0][1] - 1) < _LEAST_SHARE:
            return classes.name(shares[0][0])
        return " + ".join(f"{share:.2f} {classes.name(i)}" for i, share in shares[:4])
    if values.dtype.kind in "iub" and values.ndim == 1 and set(np.unique(values)) <= {0, 1}:
        return ", ".join(classes.name(int(i)) for i in np.flatnonzero(values)) or "no class"
    return field_text("label", label)


def field_text(name: str, value: Any) -> str:
    """Tell a field: its shape, and the beginning of what it holds."""
    if isinstance(value, torch.Tensor):
        value = value.detach().cpu().numpy()
    if isinstance(value, (bytes, bytearray, memoryview)):
        return f"{name}: {len(value):,} bytes"
    items: Any = value
    if isinstance(value, (list, tuple)):
        shape = str(len(value))
    elif isinstance(value, np.ndarray) and value.ndim:
        shape, items = " × ".join(map(str, value.shape)), value.reshape(-1)
        if value.ndim == 2 and len(value) == 2 and value.dtype.kind in "iu":  # edges of a graph
            items = [f"{start}–{end}" for start, end in value.T.tolist()]
    else:
        return f"{name}: {shortened(_number(value))}".removesuffix(": ")
    more = " …" if len(items) > _MOST_VALUES else ""
    return shortened(f"{name} [{shape}]: {' '.join(map(_number, items[:_MOST_VALUES]))}{more}")


def _number(value: Any, digits: int = 4) -> str:
    if isinstance(value, (float, np.floating)):
        return f"{float(value):.{digits}g}"
    return str(value)


def shortened(text: str, most: int = _MOST_LETTERS) -> str:
    """Cut a text that has more letters than `most`."""
    return text if len(text) <= most else text[: most - 1] + "…"


def renamed(record: Record, keys: Mapping[str, str | None] | None) -> dict[str, Any]:
    """Give a record's fields the names that a data set gives them; None drops one."""
    named = {(keys or {}).get(name, name): value for name, value in record.fields.items()}
    return {name: value for name, value in named.items() if name is not None}


@dataclass(frozen=True, slots=True)
class TableRows:
    """Rows of a table, which samples are told with the names of its columns.

    Attributes:
        statistics: What is known of the columns.
        indicated: Columns whose indicators stand behind the numbers.
        records: Fields of the records as they lie, by index.
    """

    statistics: TableStatistics
    indicated: Sequence[str]
    records: Mapping[int, Mapping[str, Any]]

    def lines(self, sample: Any, *, is_original: bool) -> list[str]:
        """Tell the columns of one row, in the same order whichever way it is looked at.

        Args:
            sample: A sample, or a bad one, which has none.
            is_original: As the record has them; else scaled, and categories with their ids.
        """
        if isinstance(sample, BadSample):
            return []
        table, told = self.statistics, []
        fields = self.records.get(int(sample["index"]), {})
        features = np.asarray(sample["features"]).tolist()
        for column, value in zip(table.numeric, features, strict=False):
            is_gap = _is_gap(fields.get(column.name))
            given = f"{value:+.3f}{' filled in' * is_gap}"
            lies = "missing" if is_gap else _number(fields[column.name], 6)
            told.append(f"{column.name}: {lies if is_original else given}")
        ids = np.asarray(sample["categories"]).tolist()
        for known, number in zip(table.categorical, ids, strict=True):
            is_gap = _is_gap(fields.get(known.name))
            name = known.values[number - 1] if number else "missing" if is_gap else "unknown"
            lies = "missing" if is_gap else str(fields[known.name])
            told.append(f"{known.name}: {lies if is_original else f'{name}, id {number}'}")
        if table.target is not None and (is_original or "target" in sample):
            target = fields.get(table.target.name) if is_original else sample["target"]
            told.append(f"{table.target.name}: {_number(target, 6)}")
        if not is_original:
            indicators = zip(self.indicated, features[len(table.numeric) :], strict=True)
            told += [f"{name} is missing: {value:g}" for name, value in indicators]
        return _at_most(_MOST_COLUMNS, told, "columns")


def table_rows(
    table: Any, storage: Storage, samples: Sequence[Any], keys: Mapping[str, str | None] | None
) -> TableRows | None:
    """Read what tells samples of a table by its columns; None for other data.

    Args:
        table: The dataset's, a decoder that has learned, or None.
        storage: Where the records lie.
        samples: Those that are shown.
        keys: New field names by field name.
    """
    if not isinstance(table, TableDecoder) or table.statistics is None:
        return None
    shown = [one for one in samples if not isinstance(one, BadSample) and "features" in one]
    records = storage.read(np.array([one["index"] for one in shown], np.int64))
    good = [record for record in records if not isinstance(record, BadRecord)]
    fields = {record.index: renamed(record, keys) for record in good}
    return TableRows(table.statistics, table.indicated, fields)


def _is_gap(value: Any) -> bool:
    return (
        value is None or value == "" or (isinstance(value, float | np.floating) and value != value)
    )
