"""One pass over the rows of a table: figures of its numbers, vocabularies of its categories."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from transforms.table_columns import (
    CategoricalColumn,
    NumericColumn,
    TableStatistics,
    category_of,
    number_of,
)

_KEPT_VALUES = 1 << 18
_MOST_DISTINCT = 1 << 20
# Columns of these and nothing else are taken at once, which gives the same.
_PLAIN_NUMBERS = frozenset({float, int, type(None)})
_PLAIN_TEXT = frozenset({str, type(None)})
_NO_COLUMNS = frozenset({"label", "image", "mask", "index", "key", "position"})


def fit_table(
    chunks: Iterable[Sequence[Mapping[str, Any]]],
    *,
    numeric: Sequence[str],
    categorical: Sequence[str],
    target: str | None,
    min_count: int,
    max_categories: int,
    where: str,
) -> TableStatistics:
    """Statistics of a table, in one pass and little memory.

    Means and deviations are exact: chunks are joined as in Chan, Golub and LeVeque, "Algorithms
    for Computing the Sample Variance", 1983. Quartiles are exact up to 262,144 values of a column,
    and above that those of a random sample of about so many, which the rows' numbers decide.

    Args:
        chunks: Rows, some at a time: their values by column.
        numeric: Columns of numbers, whatever their type.
        categorical: Columns of categories, whatever their type.
        target: The column that is to be predicted, which is no feature.
        min_count: Categories that are rarer are left out.
        max_categories: So many categories are kept, the most frequent.
        where: The data, for messages.

    Raises:
        ValueError: A column is not there, holds nothing, or holds text and numbers; or there is
            none.
    """
    found: dict[str, _Numbers | _Categories | _Other | None] = {}
    for name in numeric:
        found[name] = _Numbers()
    for name in categorical:
        found[name] = _Categories()
    goal = _Numbers()
    declared = frozenset(found)
    seen: dict[str, None] = {}
    undecided: Counter[str] = Counter()
    start = 0
    for rows in chunks:
        for name in dict.fromkeys(name for row in rows for name in row):
            if name in _NO_COLUMNS:
                continue
            seen[name] = None
            values = [row.get(name) for row in rows]
            if name == target:
                goal.add(values, start)
                continue
            column = found.get(name)
            if column is None:
                column = found[name] = _kind_of(values)
                if column is None:
                    undecided[name] += len(values)
                else:
                    column.missing += undecided[name]
            if column is not None:
                trouble = column.add(values, start)
                if isinstance(column, _Categories) and column.count > _MOST_DISTINCT:
                    raise ValueError(
                        f"{where}: column {name!r} has more than {_MOST_DISTINCT:,} different "
                        f"values, which is no category; leave it out with "
                        f"dataset.keys={{{name}: null}}"
                    )
                if trouble and name not in declared:
                    raise ValueError(
                        f"{where}: column {name!r} holds text and numbers ({trouble}); say what "
                        f"it is with dataset.decode.categorical=[{name}] or numeric=[{name}]"
                    )
        start += len(rows)
    if not start:
        raise ValueError(
            f"{where}: no row to train on, and nothing to learn figures from; lower "
            f"dataset.val_fraction, or check what the data holds"
        )
    _check(found, seen, [*declared, *([] if target is None else [target])], start, where)
    if target is not None and not goal.count:
        raise ValueError(
            f"{where}: target {target!r} has no number in {start:,} rows of the training part; "
            f"name another column"
        )
    columns = {name: found[name] for name in seen if name in found}
    numbers = [c.done(name) for name, c in columns.items() if isinstance(c, _Numbers)]
    categories = [
        c.done(name, min_count, max_categories)
        for name, c in columns.items()
        if isinstance(c, _Categories)
    ]
    if not numbers and not categories:
        raise ValueError(f"{where}: no column of numbers or text beside the label; nothing to use")
    return TableStatistics(
        start, tuple(numbers), tuple(categories), None if target is None else goal.done(target)
    )


def _check(
    found: Mapping[str, Any],
    seen: Mapping[str, None],
    asked: Iterable[str],
    rows: int,
    where: str,
) -> None:
    for name in asked:
        if name not in seen:
            raise ValueError(
                f"{where}: no column {name!r}; columns: {', '.join(seen) or 'none'}; correct "
                f"dataset.decode, or the data"
            )
    for name, column in found.items():
        if column is None or not column.count:
            raise ValueError(
                f"{where}: column {name!r} has no value that can be used in {rows:,} rows of the "
                f"training part; leave it out with dataset.keys={{{name}: null}}"
            )


def _kind_of(values: Sequence[Any]) -> _Numbers | _Categories | _Other | None:
    """What a column is by its first value; None where none is there, or it is no table's."""
    for value in values:
        if isinstance(value, str) and value:
            return _Categories(only_text=True)
        if value is None or isinstance(value, str | bytes):
            continue
        if not hasattr(value, "__float__") or getattr(value, "ndim", 0) > 0:
            return _Other()
        if not math.isnan(float(value)):
            return _Numbers()
    return None


@dataclass(slots=True)
class _Numbers:
    count: int = 0
    missing: int = 0
    mean: float = 0.0
    squares: float = 0.0
    low: float = math.inf
    high: float = -math.inf
    kept: NDArray[np.float64] = field(default_factory=lambda: np.zeros(0))
    ranks: NDArray[np.uint64] = field(default_factory=lambda: np.zeros(0, np.uint64))
    limit: int = 1 << 64

    def add(self, values: Sequence[Any], start: int) -> str:
        """Take some values, those of rows from `start` on; what is wrong with one, if any is."""
        trouble = ""
        if {*map(type, values)} <= _PLAIN_NUMBERS:
            numbers = np.array(values, np.float64)
            numbers[np.isinf(numbers)] = np.nan
        else:
            numbers = np.full(len(values), np.nan)
            for place, value in enumerate(values):
                try:
                    numbers[place] = number_of(value)
                except ValueError as error:  # its row will be a bad sample
                    trouble = str(error) if isinstance(value, str) else trouble
        there = np.flatnonzero(~np.isnan(numbers))
        self.missing += len(values) - len(there)
        if len(there):
            self._join(numbers[there], there + start)
        return trouble

    def _join(self, numbers: NDArray[np.float64], rows: NDArray[np.int64]) -> None:
        n, mean = len(numbers), float(numbers.mean())
        total, apart = self.count + n, mean - self.mean
        self.squares += float(np.square(numbers - mean).sum())
        self.squares += apart * apart * self.count * n / total
        self.mean += apart * n / total
        self.count = total
        self.low = min(self.low, float(numbers.min()))
        self.high = max(self.high, float(numbers.max()))
        self.kept = np.concatenate([self.kept, numbers])
        self.ranks = np.concatenate([self.ranks, _mixed(rows)])
        while len(self.kept) > _KEPT_VALUES:
            self.limit //= 2
            inside = self.ranks < np.uint64(self.limit)
            self.kept, self.ranks = self.kept[inside], self.ranks[inside]

    def done(self, name: str) -> NumericColumn:
        first, middle, third = (float(q) for q in np.quantile(self.kept, [0.25, 0.5, 0.75]))
        std = 0.0 if self.low == self.high else math.sqrt(max(self.squares, 0.0) / self.count)
        return NumericColumn(
            name, self.count, self.missing, self.mean, std, self.low, self.high,
            (first, middle, third),
        )  # fmt: skip


@dataclass(slots=True)
class _Categories:
    only_text: bool = False
    missing: int = 0
    counts: Counter[str] = field(default_factory=Counter)

    @property
    def count(self) -> int:
        return len(self.counts)

    def add(self, values: Sequence[Any], start: int) -> str:
        """As `_Numbers.add`."""
        trouble = ""
        if {*map(type, values)} <= _PLAIN_TEXT:
            counts = Counter(values)
            self.missing += counts.pop(None, 0) + counts.pop("", 0)
            self.counts += counts
            return trouble
        for value in values:
            try:
                category = category_of(value)
            except ValueError as error:  # its row will be a bad sample
                category, trouble = None, str(error)
            if category is None:
                self.missing += 1
                continue
            if self.only_text and not isinstance(value, str):
                trouble = f"{value!r} among text"
            self.counts[category] += 1
        return trouble

    def done(self, name: str, min_count: int, most: int) -> CategoricalColumn:
        ordered = sorted(self.counts.items(), key=lambda item: (-item[1], item[0]))
        values = tuple(text for text, count in ordered if count >= min_count)[:most]
        others = sum(self.counts.values()) - sum(self.counts[text] for text in values)
        return CategoricalColumn(name, values, self.missing, others)


class _Other:
    """A field that is no column of a table, such as an array: it stays as it is."""

    count = 1
    missing = 0

    def add(self, values: Sequence[Any], start: int) -> str:
        """As `_Numbers.add`."""
        return ""


def _mixed(rows: NDArray[np.int64]) -> NDArray[np.uint64]:
    """Rows' numbers, mixed to evenly spread ones: the finalizer of SplitMix64.

    Source: Steele, Lea and Flood, "Fast Splittable Pseudorandom Number Generators", OOPSLA 2014.
    """
    x = rows.astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))
