"""Compute statistics of the columns of a table, and parse its values."""

from __future__ import annotations

import itertools
import json
import math
import re
import tempfile
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from penstock.core.sample import TextColumn

_VERSION = 1
_SPOOL_BYTES = 1 << 24
_MOST_DISTINCT = 1 << 20
_MOST_SHARE, _FEWEST_VALUES = 0.5, 20
_INDEX = re.compile(r"__index_level_\d+__")  # pandas' own, in Parquet
_DATE = re.compile(r"\d{4}-\d\d-\d\d([T ].*)?|\d\d?[./]\d\d?[./]\d{4}")
_IMAGE_FILE = re.compile(r".+\.(jpe?g|png|webp|bmp|gif|tiff?)", re.IGNORECASE)
_NO_IMAGES = (
    ", which dataset/decode=table does not read; type dataset/decode=image with a task and a model "
    "of images, or leave them out with dataset.keys={{{name}:null}}"
)
_NO_COLUMNS = frozenset({"label", "image", "mask", "index", "key", "position"})

Column = NDArray[Any] | TextColumn | list[Any]
"""Values of a field, [n], see `core.contracts.Storage.take`; or a list of any values."""


@dataclass(frozen=True, slots=True)
class NumericColumn:
    """Statistics of a column of numbers, over the training split.

    Attributes:
        name: The column.
        count: Number of values.
        missing: Rows without a value.
        mean: Mean.
        std: Population standard deviation; 0 if all values are equal.
        low: Minimum.
        high: Maximum.
        quartiles: First quartile, median and third quartile.
    """

    name: str
    count: int
    missing: int
    mean: float
    std: float
    low: float
    high: float
    quartiles: tuple[float, float, float]


@dataclass(frozen=True, slots=True)
class CategoricalColumn:
    """Vocabulary of a column of categories, over the training split.

    Attributes:
        name: The column.
        values: Categories, the most frequent first; the id of ``values[i]`` is ``i + 1``.
        missing: Rows without a value.
        others: Rows with a category outside the vocabulary, whose id is 0.
    """

    name: str
    values: tuple[str, ...]
    missing: int
    others: int


@dataclass(frozen=True, slots=True)
class TableStatistics:
    """Statistics of a table, for samples and models; plain JSON on disk.

    Attributes:
        rows: Number of rows.
        numeric: Columns of numbers, in the order of the features.
        categorical: Columns of categories, in the order of their ids in a sample.
        target: The column to predict, or None.
        left_out: Columns that only identify the row, and why.
    """

    rows: int
    numeric: tuple[NumericColumn, ...]
    categorical: tuple[CategoricalColumn, ...]
    target: NumericColumn | None
    left_out: tuple[tuple[str, str], ...] = ()

    def as_json(self) -> dict[str, Any]:
        """Return plain JSON values, the same for the same table."""
        return {"version": _VERSION, **json.loads(json.dumps(asdict(self)))}

    @classmethod
    def from_json(cls, content: Any, *, where: str) -> TableStatistics:
        """Validate and read the result of `as_json`; raise ValueError if it is invalid."""
        from pydantic import TypeAdapter, ValidationError

        try:
            version = content["version"]
            figures = {name: value for name, value in content.items() if name != "version"}
            if version != _VERSION:
                raise ValueError(f"version {version!r}, expected {_VERSION}")
            return TypeAdapter(cls).validate_python(figures)
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            said = f"{type(error).__name__}: {error}"
            if isinstance(error, ValidationError):
                first = error.errors()[0]
                said = f"{'.'.join(map(str, first['loc']))}: {first['msg']}"
            raise ValueError(
                f"{where}: no statistics of a table ({said}); give the table.json of a run"
            ) from error


def read_statistics(path: str | Path) -> TableStatistics:
    """Read a file of statistics, such as a run's ``table.json``; raise ValueError if invalid."""
    try:
        content = json.loads(Path(path).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ValueError(
            f"statistics: {path} cannot be read ({error}); give the table.json of a run"
        ) from error
    return TableStatistics.from_json(content, where=str(path))


def number_of(value: Any) -> float:
    """Parse a value as a number, NaN if missing; raise ValueError for text and infinity."""
    if value is None:
        return math.nan
    number = _as_float(value, "is not a number")
    if math.isinf(number):
        raise ValueError(f"{number} is not a finite number")
    return number


def category_of(value: Any) -> str | None:
    """Parse a value as a category, None if missing; whole numbers become their digits."""
    if value is None or isinstance(value, str):
        return value or None
    number = _as_float(value, "is neither text nor a number")
    if math.isnan(number):
        return None
    return str(int(value)) if number.is_integer() else repr(number)


def _as_float(value: Any, otherwise: str) -> float:
    if _is_number(value):
        return float(value)
    shown = repr(value)
    raise ValueError(f"{shown if len(shown) <= 40 else f'{shown[:37]}...'} {otherwise}")


def _is_number(value: Any) -> bool:
    return hasattr(value, "__float__") and not getattr(value, "ndim", 0)


def numbers_of(values: Any) -> NDArray[np.float64]:
    """Parse a column [n] as `number_of` parses values; see `core.contracts.Storage.take`."""
    if isinstance(values, TextColumn):
        if (values.places >= 0).any():
            raise ValueError("texts are not numbers")
        return np.full(len(values), np.nan)
    _refuse_others(values)
    numbers: NDArray[np.float64] = values.astype(np.float64)
    if np.isinf(numbers).any():
        raise ValueError("a number is not finite")
    return numbers


class CategoryIds:
    """Ids of a column's categories; unknown and missing categories have the id 0.

    Args:
        values: Categories; the first has the id 1.
    """

    def __init__(self, values: Iterable[str]) -> None:
        self._ids = {text: number for number, text in enumerate(values, start=1)}
        self._looked_up: tuple[Any, Any] = None, None  # one tuple, since other threads read it

    def __len__(self) -> int:
        return len(self._ids)

    def of(self, value: Any) -> int:
        """Return the id of one value; raise ValueError if it is neither text nor a number."""
        category = category_of(value)
        return 0 if category is None else self._ids.get(category, 0)

    def of_column(self, values: Any) -> NDArray[np.int64]:
        """Return the ids of a column [n]; see `core.contracts.Storage.take`."""
        if isinstance(values, TextColumn):
            # Batches share their texts, so look them up once.
            texts, ids = self._looked_up
            if texts is not values.texts:
                ids = np.array(list(map(self.of, values.texts)), np.int64)
                self._looked_up = values.texts, ids
            return np.asarray(ids[values.places])
        _refuse_others(values)
        different, places = np.unique(values, return_inverse=True)
        ids = np.array([self.of(value) for value in different.tolist()], np.int64)
        return np.asarray(ids[places])


def _refuse_others(values: NDArray[Any]) -> None:
    if values.ndim != 1 or values.dtype.kind not in "biuf":
        raise ValueError("arrays are neither text nor numbers")


def fit_table(
    chunks: Iterable[Mapping[str, Column]],
    *,
    numeric: Sequence[str],
    categorical: Sequence[str],
    target: str | None,
    min_count: int,
    max_categories: int,
    where: str,
) -> TableStatistics:
    """Compute the exact statistics of a table in one pass.

    Means and deviations of chunks are combined as in Chan, Golub and LeVeque, "Algorithms for
    Computing the Sample Variance", 1983. For the quartiles, each column of numbers is stored with 8
    bytes a value, in a temporary file beyond 16 MB. Memory holds one column at a time.

    Args:
        chunks: Columns of the same rows, some rows at a time.
        numeric: Columns of numbers, whatever their type.
        categorical: Columns of categories, whatever their type.
        target: The column to predict, which is not a feature.
        min_count: Rarer categories get the id 0.
        max_categories: Maximum number of ids per column, for the most frequent categories.
        where: Name of the data, for messages.

    Raises:
        ValueError: A column is missing or empty, or mixes text and numbers, or no column is left.
    """
    numbers = [*numeric, *([] if target is None else [target])]
    found: dict[str, _Numbers | _Categories | _Other] = {name: _Numbers() for name in numbers}
    found |= {name: _Categories() for name in categorical}
    declared = frozenset(found)
    seen: dict[str, None] = {}  # in the order of the table
    start = 0
    for columns in chunks:
        count = len(next(iter(columns.values()), ()))
        if "image" in columns:
            raise ValueError(f"{where}: its rows have images{_NO_IMAGES.format(name='image')}")
        for name, values in columns.items():
            if name in _NO_COLUMNS:
                continue
            seen[name] = None
            column = found.get(name)
            if name not in declared and (column is None or not column.count):
                missing = 0 if column is None else column.missing
                column = found[name] = _kind_of(values)
                column.missing = missing
            assert column is not None
            trouble = column.add(values)
            if isinstance(column, _Categories) and column.count > _MOST_DISTINCT:
                why = f"more than {_MOST_DISTINCT:,} different values"
                if name in declared:
                    raise ValueError(
                        f"{where}: column {name!r} has {why}, too many for categories; take it out "
                        f"of dataset.decode.categorical"
                    )
                found[name] = _Other(count=1, missing=column.missing, why=why)
            if trouble and name not in declared:
                raise ValueError(
                    f"{where}: column {name!r} holds text and numbers ({trouble}); say what "
                    f"it is with dataset.decode.categorical=[{name}] or numeric=[{name}]"
                )
        start += count
    if not start:
        raise ValueError(
            f"{where}: no row to train on, and nothing to learn figures from; lower "
            f"dataset.val_fraction, or check what the data holds"
        )
    for name in (*declared, *seen):
        if name not in seen:
            raise ValueError(
                f"{where}: no column {name!r}; columns: {', '.join(seen) or 'none'}; correct "
                f"dataset.decode, or the data"
            )
        if not found[name].count and name == target:
            raise ValueError(
                f"{where}: target {name!r} lacks a number in all {start:,} rows of the training "
                f"part; name another column"
            )
        if not found[name].count:
            raise ValueError(
                f"{where}: column {name!r} lacks a usable value in all {start:,} rows of the "
                f"training part; leave it out with dataset.keys={{{name}:null}}"
            )
    for name, column in found.items():
        if name not in declared and isinstance(column, _Categories) and all(
            map(_IMAGE_FILE.fullmatch, column.counts)
        ):  # fmt: skip
            what = f"{where}: column {name!r} names image files (dataset.storage.image_column)"
            raise ValueError(what + _NO_IMAGES.format(name=name))
    left_out = {
        name: why
        for name in seen
        if name not in declared and (why := _tells_rows(name, found[name]))
    }
    taken = {name: found[name] for name in seen if name not in left_out}
    figures = {
        name: column.done(name) for name, column in taken.items() if isinstance(column, _Numbers)
    }
    goal = None if target is None else figures.pop(target)
    categories = [
        column.done(name, min_count, max_categories)
        for name, column in taken.items()
        if isinstance(column, _Categories)
    ]
    if not figures and not categories:
        about = "; ".join(f"{name!r} was left out: {why}" for name, why in left_out.items())
        raise ValueError(
            f"{where}: no column of numbers or text beside the label{about and f' ({about})'}; add "
            f"one, or name what to use with dataset.decode.categorical=[COLUMN]"
        )
    return TableStatistics(
        start, tuple(figures.values()), tuple(categories), goal, tuple(left_out.items())
    )


def _tells_rows(name: str, column: _Numbers | _Categories | _Other) -> str:
    """Return why a column is not a feature unless the config names it; empty if it is a feature."""
    if not name or name.startswith("Unnamed: ") or _INDEX.fullmatch(name):
        return "unnamed"
    if isinstance(column, _Numbers) and column.counts_rows:
        return "row numbers"
    if isinstance(column, _Categories) and all(map(_DATE.fullmatch, column.counts)):
        return "dates"
    if isinstance(column, _Categories):
        total = column.counts.total()
        if total >= _FEWEST_VALUES and column.count > _MOST_SHARE * total:
            return f"{column.count:,} different values in {total:,} rows"
    return column.why if isinstance(column, _Other) else ""


def _kind_of(values: Column) -> _Numbers | _Categories | _Other:
    """Infer the kind of a column from its first value."""
    if isinstance(values, np.ndarray) and (values.ndim > 1 or values.dtype.kind not in "biuf"):
        return _Other(count=1)
    for value in values if isinstance(values, list) else values.tolist():
        if isinstance(value, str) and value:
            return _Categories(only_text=True)
        if value is None or isinstance(value, str | bytes):
            continue
        if not _is_number(value):
            return _Other(count=1)
        if not math.isnan(float(value)):
            return _Numbers()
    return _Other()


@dataclass(slots=True)
class _Numbers:
    count: int = 0
    missing: int = 0
    mean: float = 0.0
    squares: float = 0.0
    low: float = math.inf
    high: float = -math.inf
    last: float = -math.inf
    rises: bool = True
    spool: Any = field(default_factory=lambda: tempfile.SpooledTemporaryFile(_SPOOL_BYTES))

    def add(self, values: Column) -> str:
        """Add values; return an error about one of them, or an empty text."""
        numbers, trouble = _floats(values)
        there = numbers[np.isfinite(numbers)]
        self.missing += len(numbers) - len(there)
        if len(there):
            self._join(there)
        return trouble

    @property
    def counts_rows(self) -> bool:
        """Whether the values look like row numbers: whole, rising, dense, and starting near 0."""
        few = self.high - self.low < 4 * self.count + 20
        return self.rises and few and 0 <= self.low < 20 and self.count > 1 and not self.missing

    def _join(self, numbers: NDArray[np.float64]) -> None:
        if self.rises:
            steps = np.diff(numbers, prepend=self.last)
            self.rises = bool((steps > 0).all() and not (numbers % 1).any())
            self.last = float(numbers[-1])
        n, mean = len(numbers), float(numbers.mean())
        total, apart = self.count + n, mean - self.mean
        self.squares += float(np.square(numbers - mean).sum())
        self.squares += apart * apart * self.count * n / total
        self.mean += apart * n / total
        self.count = total
        self.low = min(self.low, float(numbers.min()))
        self.high = max(self.high, float(numbers.max()))
        self.spool.write(numbers.tobytes())

    def done(self, name: str) -> NumericColumn:
        with self.spool as spool:
            spool.seek(0)
            values = np.frombuffer(spool.read())
        first, middle, third = (float(q) for q in np.quantile(values, [0.25, 0.5, 0.75]))
        std = 0.0 if self.low == self.high else math.sqrt(max(self.squares, 0.0) / self.count)
        return NumericColumn(
            name, self.count, self.missing, self.mean, std, self.low, self.high,
            (first, middle, third),
        )  # fmt: skip


def _floats(values: Column) -> tuple[NDArray[np.float64], str]:
    """Return a column as floats, NaN for invalid values, and an error about text in it."""
    if isinstance(values, np.ndarray) and values.ndim == 1 and values.dtype.kind in "biuf":
        return values.astype(np.float64), ""
    listed = values if isinstance(values, list) else values.tolist()
    if {*map(type, listed)} <= {float, int, type(None)}:
        return np.array(listed, np.float64), ""  # same result, faster
    numbers, trouble = np.full(len(listed), np.nan), ""
    for place, value in enumerate(listed):
        try:
            numbers[place] = number_of(value)
        except ValueError as error:  # its row will be a bad sample
            trouble = str(error) if isinstance(value, str) else trouble
    return numbers, trouble


@dataclass(slots=True)
class _Categories:
    only_text: bool = False
    missing: int = 0
    counts: Counter[str] = field(default_factory=Counter)

    @property
    def count(self) -> int:
        return len(self.counts)

    def add(self, values: Column) -> str:
        """Add values, like `_Numbers.add`."""
        trouble = ""
        for value, count in _counted(values):
            try:
                category = category_of(value)
            except ValueError as error:  # its row will be a bad sample
                category, trouble = None, str(error)
            if category is None:
                self.missing += count
                continue
            if self.only_text and not isinstance(value, str):
                trouble = f"{value!r} among text"
            self.counts[category] += count
        return trouble

    def done(self, name: str, min_count: int, most: int) -> CategoricalColumn:
        ordered = sorted(self.counts.items(), key=lambda item: (-item[1], item[0]))
        values = tuple(text for text, count in ordered if count >= min_count)[:most]
        others = self.counts.total() - sum(self.counts[text] for text in values)
        return CategoricalColumn(name, values, self.missing, others)


def _counted(values: Column) -> Iterable[tuple[Any, int]]:
    """Count equal values."""
    if isinstance(values, TextColumn):
        counts = np.bincount(values.places + 1, minlength=1)  # the first counts None
        there = np.flatnonzero(counts)
        return zip(values.texts[there - 1].tolist(), counts[there].tolist(), strict=True)
    listed = values if isinstance(values, list) else values.tolist()
    try:
        return Counter(listed).items()
    except TypeError:  # unhashable arrays and lists
        return zip(listed, itertools.repeat(1))


@dataclass(slots=True)
class _Other:
    """A field without values so far, or, with a count, not a column, such as an array."""

    count: int = 0
    missing: int = 0
    why: str = ""

    def add(self, values: Column) -> str:
        """Count missing values."""
        self.missing += len(values)
        return ""
