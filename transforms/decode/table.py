"""Decode rows of tables: scale numbers, number categories, fill in missing values."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
from annotated_types import Ge
from numpy.typing import NDArray

from penstock.core.contracts import FittedDecoder
from penstock.core.registry import register
from penstock.core.sample import Record, RecordError, Sample, TextColumn
from penstock.transforms.table_statistics import (
    Column,
    NumericColumn,
    TableStatistics,
    category_of,
    fit_table,
    numbers_of,
)

Scaling = Literal["standard", "min_max", "robust", "none"]


@register("decode", "table")
class TableDecoder(FittedDecoder):
    """Turn columns into ``features`` and ``categories``, with statistics of the training split.

    By default columns of numbers are features and columns of text are categories. Each column
    with missing values in the training split adds a feature: 1 for a missing number. ``label`` and
    other fields pass unchanged; ``dataset.keys`` drops columns.

    Args:
        numeric: Columns to read as numbers, whatever their type; text is a bad sample.
        categorical: Columns to read as categories, whatever their type, such as codes.
        target: Column of numbers to predict; becomes the field ``target``, in its own units.
        scaling: ``standard`` (mean and standard deviation), ``min_max`` (0 .. 1), ``robust``
            (median and interquartile range) or ``none``. A constant column becomes 0.
        missing: Replacement of a missing number: ``mean`` or ``median``.
        min_count: Categories rarer than this in the training split get the id 0, like unknown and
            missing ones.
        statistics: ``table.json`` of a run, instead of statistics of this data.
    """

    def __init__(
        self,
        *,
        numeric: Sequence[str] = (),
        categorical: Sequence[str] = (),
        target: str | None = None,
        scaling: Scaling = "standard",
        missing: Literal["mean", "median"] = "median",
        min_count: Annotated[int, Ge(1)] = 1,
        statistics: str | None = None,
    ) -> None:
        self.numeric, self.categorical = tuple(numeric), tuple(categorical)
        self.target, self.scaling, self.missing = target, scaling, missing
        self.min_count = min_count
        named = [*numeric, *categorical, target]
        for name in named:
            if named.count(name) > 1:
                raise ValueError(
                    f"decode/table: {name!r} stands twice in numeric, categorical and target"
                )
        self.statistics: TableStatistics | None = None
        if statistics is not None:
            try:
                self.learn(json.loads(Path(statistics).read_text(encoding="utf-8")))
            except (OSError, ValueError) as error:
                raise ValueError(f"dataset.decode.statistics={statistics}: {error}") from error

    @property
    def recipe(self) -> dict[str, Any]:
        """Arguments on which the statistics depend, apart from the data."""
        names = ("numeric", "categorical", "target", "min_count")
        return {name: getattr(self, name) for name in names}

    def fit(self, chunks: Iterable[Mapping[str, Any]], *, where: str) -> dict[str, Any]:
        """Compute the statistics of the training split, as `learn` takes them; see `fit_table`."""
        return fit_table(chunks, where=where, **self.recipe).as_json()

    def learn(self, learned: Mapping[str, Any]) -> None:
        """Set the statistics of a training split; raise ValueError if they have another target."""
        self.statistics = table = TableStatistics.from_json(learned)
        if self.target is not None and (table.target is None or table.target.name != self.target):
            raise ValueError(
                f"decode/table: target is {self.target!r}, and the statistics have the target "
                f"{table.target and table.target.name!r}; use statistics of a run with this target"
            )
        shifts_and_scales = [_shift_and_scale(column, self.scaling) for column in table.numeric]
        self._shift, self._scale = np.array(shifts_and_scales, np.float64).reshape(-1, 2).T
        self._fills = np.array(
            [c.mean if self.missing == "mean" else c.quartiles[1] for c in table.numeric]
        )
        self._names = [column.name for column in table.numeric]
        self._indicated = [n for n, column in enumerate(table.numeric) if column.missing]
        self._ids = {column.name: _CategoryIds(column.values) for column in table.categorical}
        self._taken = {*self._names, *self._ids, self.target}

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
        return tuple(len(ids) + 1 for ids in self._ids.values())

    def __call__(self, record: Record) -> Sample:
        """Decode a row to ``features`` float32 [F], ``categories`` int64 [C], and ``target``."""
        row = self._decoded({name: [value] for name, value in record.fields.items()})
        sample = {name: values[0] for name, values in row.items()}
        return {**sample, "index": record.index, "key": record.key}

    def columns(self, fields: Mapping[str, Any]) -> dict[str, Any] | None:
        """Decode columns of n rows with the same results as row by row; None if a row is bad."""
        try:
            return self._decoded(fields)
        except RecordError:
            return None

    def _decoded(self, fields: Mapping[str, Any]) -> dict[str, Any]:
        numbers = [self._parsed(fields, name, numbers_of) for name in self._names]
        categories = [self._parsed(fields, name, ids.of_column) for name, ids in self._ids.items()]
        decoded = {name: values for name, values in fields.items() if name not in self._taken}
        count = len(next(iter(fields.values())))
        given = np.array(numbers, np.float64).reshape(-1, count).T
        missing = np.isnan(given)
        with np.errstate(over="ignore"):
            filled = np.where(missing, self._fills, given)
            scaled = ((filled - self._shift) / self._scale).astype(np.float32)
        if not np.isfinite(scaled).all():
            name = self._names[int(np.flatnonzero(~np.isfinite(scaled).all(0))[0])]
            raise RecordError(f"column {name!r} is too large to be scaled")
        indicators = missing[:, self._indicated].astype(np.float32)
        decoded["features"] = np.concatenate([scaled, indicators], axis=1)
        decoded["categories"] = np.array(categories, np.int64).reshape(-1, count).T.copy()
        if self.target is not None:
            decoded["target"] = self._parsed(fields, self.target, numbers_of)
            if np.isnan(decoded["target"]).any():
                raise RecordError(f"its target {self.target!r} is missing")
        return decoded

    @staticmethod
    def _parsed(fields: Mapping[str, Any], name: str, parse: Callable[[Any], Any]) -> Any:
        if name not in fields:
            raise RecordError(
                f"no column {name!r}, which the training part has; columns: {', '.join(fields)}"
            )
        try:
            return parse(fields[name])
        except ValueError as error:
            raise RecordError(f"column {name!r}: {error}") from None


class _CategoryIds(dict[str, int]):
    """Ids of a column's categories from 1; unknown and missing categories have the id 0."""

    def __init__(self, values: Iterable[str]) -> None:
        super().__init__((text, number) for number, text in enumerate(values, start=1))
        self._looked_up: tuple[Any, Any] = None, None  # one tuple, since other threads read it

    def of_column(self, values: Column) -> NDArray[np.int64]:
        """Return the ids of a column [n]; raise ValueError if a value is not text or a number."""
        if isinstance(values, TextColumn):
            # Batches share their texts, so look them up once.
            texts, ids = self._looked_up
            if texts is not values.texts:
                ids = self.of_column(values.texts.tolist())
                self._looked_up = values.texts, ids
            return np.asarray(ids[values.places])
        if isinstance(values, np.ndarray) and values.ndim == 1:
            different, places = np.unique(values, return_inverse=True)
            return self.of_column(different.tolist())[places]
        return np.array([self.get(category_of(value) or "", 0) for value in values], np.int64)


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
