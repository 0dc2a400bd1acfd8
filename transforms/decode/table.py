"""Decode rows of tables: scale numbers, number categories, fill in missing values."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeVar

import numpy as np
from annotated_types import Ge
from numpy.typing import NDArray

from penstock.core.contracts import FittedDecoder
from penstock.core.registry import register
from penstock.core.sample import Record, RecordError, Sample
from penstock.transforms.table_statistics import (
    CategoryIds,
    NumericColumn,
    TableStatistics,
    fit_table,
    number_of,
    numbers_of,
    read_statistics,
)

if TYPE_CHECKING:
    Floats = NDArray[np.float64]

T = TypeVar("T")
Scaling = Literal["standard", "min_max", "robust", "none"]


@register("decode", "table")
class TableDecoder(FittedDecoder):
    """Turn columns into ``features`` and ``categories``, with statistics of the training split.

    By default columns of numbers are features and columns of text are categories. ``label`` and
    other fields pass unchanged; ``dataset.keys`` drops columns.

    Args:
        numeric: Columns to read as numbers, whatever their type; text is a bad sample.
        categorical: Columns to read as categories, whatever their type, such as codes.
        target: Column of numbers to predict; becomes the field ``target``, in its own units.
        scaling: ``standard`` (mean and standard deviation), ``min_max`` (0 .. 1), ``robust``
            (median and interquartile range) or ``none``. A constant column becomes 0.
        missing: Replacement of a missing number: ``mean``, ``median`` or ``constant``.
        fill: The constant, in the column's units.
        indicators: Add a feature, 1 for a missing number, for each column with missing values in
            the training split.
        min_count: Categories rarer than this in the training split get the id 0, like unknown and
            missing ones.
        max_categories: Maximum number of ids per column; further categories get the id 0.
        statistics: ``table.json`` of a run, instead of statistics of this data.
    """

    def __init__(
        self,
        *,
        numeric: Sequence[str] = (),
        categorical: Sequence[str] = (),
        target: str | None = None,
        scaling: Scaling = "standard",
        missing: Literal["mean", "median", "constant"] = "median",
        fill: float = 0.0,
        indicators: bool = True,
        min_count: Annotated[int, Ge(1)] = 1,
        max_categories: Annotated[int, Ge(1)] = 10_000,
        statistics: str | None = None,
    ) -> None:
        self.numeric, self.categorical = tuple(numeric), tuple(categorical)
        self.target, self.scaling = target, scaling
        self.missing, self.fill, self.indicators = missing, fill, indicators
        self.min_count, self.max_categories = min_count, max_categories
        named = [*self.numeric, *self.categorical, *([] if target is None else [target])]
        for name in named:
            if named.count(name) > 1:
                raise ValueError(
                    f"decode/table: column {name!r} is named twice; it is one of numeric, "
                    f"categorical and target"
                )
        self.statistics: TableStatistics | None = None
        if statistics is not None:
            self.learn(read_statistics(statistics).as_json())

    @property
    def recipe(self) -> dict[str, Any]:
        """Arguments on which the statistics depend, apart from the data."""
        names = ("numeric", "categorical", "target", "min_count", "max_categories")
        return {name: getattr(self, name) for name in names}

    def fit(self, chunks: Iterable[Mapping[str, Any]], *, where: str) -> dict[str, Any]:
        """Compute the statistics of the training split, as `learn` takes them; see `fit_table`."""
        return fit_table(chunks, where=where, **self.recipe).as_json()

    def learn(self, learned: Mapping[str, Any]) -> None:
        """Set the statistics of a training split; raise ValueError if they have another target."""
        self.statistics = table = TableStatistics.from_json(learned, where="decode/table")
        if self.target is not None and (table.target is None or table.target.name != self.target):
            has = "none" if table.target is None else repr(table.target.name)
            raise ValueError(
                f"decode/table: target is {self.target!r}, and the statistics are of a table with "
                f"target {has}; use statistics of a run with this target"
            )
        places = [_shift_and_scale(column, self.scaling) for column in table.numeric]
        self._shift = np.array([shift for shift, _ in places], np.float64)
        self._scale = np.array([scale for _, scale in places], np.float64)
        fills = {
            "mean": [column.mean for column in table.numeric],
            "median": [column.quartiles[1] for column in table.numeric],
            "constant": [self.fill] * len(table.numeric),
        }
        self._fills = np.array(fills[self.missing], np.float64)
        lacking = [n for n, column in enumerate(table.numeric) if column.missing]
        self._indicated = np.array(lacking if self.indicators else [], np.int64)
        self._ids = [(column.name, CategoryIds(column.values)) for column in table.categorical]
        self._names = [column.name for column in table.numeric]
        self._numbers = [*self._names, *([] if self.target is None else [self.target])]
        self._taken = frozenset(self._names) | {name for name, _ in self._ids}

    @property
    def num_features(self) -> int:
        """Length of ``features``."""
        return len(self._names) + len(self._indicated)

    @property
    def indicated(self) -> tuple[str, ...]:
        """Columns whose indicators follow the numbers in ``features``."""
        return tuple(self._names[number] for number in self._indicated)

    @property
    def num_categories(self) -> tuple[int, ...]:
        """Number of ids in each of the ``categories``, including 0 for unknown."""
        return tuple(len(ids) + 1 for _, ids in self._ids)

    def __call__(self, record: Record) -> Sample:
        """Decode a row.

        Returns:
            ``features`` float32 [F], the scaled numbers and then the indicators; ``categories``
            int64 [C], 0 for missing or unknown; ``target`` if there is one; other fields.

        Raises:
            RecordError: A column or the target is missing, or a number is text or infinite.
        """
        numbers = [self._read(record, name, number_of) for name in self._numbers]
        categories = [self._read(record, name, ids.of) for name, ids in self._ids]
        decoded = self._decoded(
            record.fields, np.array(numbers, np.float64)[None], np.array(categories, np.int64)[None]
        )
        for name in ("features", "categories"):
            decoded[name] = decoded[name][0]
        if self.target is not None:
            decoded["target"] = float(decoded["target"][0])
        return {**decoded, "index": record.index, "key": record.key}

    def columns(self, fields: Mapping[str, Any]) -> dict[str, Any] | None:
        """Decode columns of n rows at once, with the same results as row by row.

        Returns:
            ``features`` float32 [n, F] and so on; None if a row is bad. Decoding that row alone
            then reports the error.
        """
        if not all(name in fields for name in (*self._taken, *self._numbers)):
            return None
        count = len(next(iter(fields.values())))
        numbers = np.empty((count, len(self._numbers)), np.float64)
        categories = np.empty((count, len(self._ids)), np.int64)
        try:
            for place, name in enumerate(self._numbers):
                numbers[:, place] = numbers_of(fields[name])
            for place, (name, ids) in enumerate(self._ids):
                categories[:, place] = ids.of_column(fields[name])
            return self._decoded(fields, numbers, categories)
        except ValueError:
            return None

    def _decoded(
        self, fields: Mapping[str, Any], numbers: Floats, categories: NDArray[np.int64]
    ) -> dict[str, Any]:
        """Fill in missing numbers [n, N], NaN, and scale them; the last may be the target."""
        assert self.statistics is not None, "a decoder that is fitted belongs here"
        count = len(self._names)
        gone = np.isnan(numbers[:, :count])
        with np.errstate(over="ignore"):
            filled = np.where(gone, self._fills, numbers[:, :count])
            scaled = ((filled - self._shift) / self._scale).astype(np.float32)
        if not np.isfinite(scaled).all():
            name = self._names[int(np.flatnonzero(~np.isfinite(scaled).all(0))[0])]
            raise RecordError(f"column {name!r} is too large to be scaled")
        taken = {*self._taken, self.target}
        decoded = {name: value for name, value in fields.items() if name not in taken}
        indicators = gone[:, self._indicated].astype(np.float32)
        decoded["features"] = np.concatenate([scaled, indicators], axis=1)
        decoded["categories"] = categories
        if self.target is not None:
            decoded["target"] = numbers[:, -1]
            if np.isnan(decoded["target"]).any():
                raise RecordError(f"its target {self.target!r} is missing")
        return decoded

    @staticmethod
    def _read(record: Record, name: str, read: Callable[[Any], T]) -> T:
        if name not in record.fields:
            raise RecordError(
                f"no column {name!r}, which the training part has; columns: "
                f"{', '.join(record.fields)}"
            )
        try:
            return read(record.fields[name])
        except ValueError as error:
            raise RecordError(f"column {name!r}: {error}") from None


def _shift_and_scale(column: NumericColumn, scaling: Scaling) -> tuple[float, float]:
    """Return the number to subtract from values, and the number to divide by."""
    first, middle, third = column.quartiles
    shift, scale = {
        "standard": (column.mean, column.std),
        "min_max": (column.low, column.high - column.low),
        "robust": (middle, third - first or column.std),
        "none": (0.0, 1.0),
    }[scaling]
    return shift, scale or 1.0
