"""Rows of tables: numbers are scaled, categories become ids, what is missing is filled in."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any, Literal

from annotated_types import Ge

from datasets.sample import Record, Sample
from pipeline.registry import register
from transforms.table_columns import (
    CategoryIds,
    NumericColumn,
    TableStatistics,
    number_of,
    numbers_of,
    read_statistics,
)

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Floats = NDArray[np.float64]

Scaling = Literal["standard", "min_max", "robust", "none"]


@register("decode", "table")
class TableDecoder:
    """Columns to ``features`` and ``categories``, by figures of the training part alone.

    Columns of numbers are features and columns of text are categories, unless said otherwise;
    ``label`` and what is no such column pass unchanged; ``dataset.keys`` leaves columns out.

    Args:
        numeric: Columns that are numbers, whatever their type; a text in one is a bad sample.
        categorical: Columns that are categories, whatever their type, such as codes.
        target: The column of numbers to be predicted: the field ``target``, in its own units.
        scaling: ``standard`` (mean and standard deviation), ``min_max`` (0 .. 1), ``robust``
            (median and the distance of the quartiles) or ``none``. A constant column becomes 0.
        missing: What stands for a missing number: ``mean``, ``median`` or ``constant``.
        fill: The constant, in the column's units.
        indicators: A feature more, 1 where the number is missing, for every column that lacks
            some in the training part.
        min_count: Categories that are rarer in the training part have the id 0, as those have
            that it has not, and missing ones.
        max_categories: So many categories of a column have ids of their own.
        statistics: The ``table.json`` of a run, in place of figures of this data.
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
        """What decides the figures, beside the data."""
        names = ("numeric", "categorical", "target", "min_count", "max_categories")
        return {name: getattr(self, name) for name in names}

    def fit(self, chunks: Iterable[Sequence[Mapping[str, Any]]], *, where: str) -> dict[str, Any]:
        """The figures of the training part's rows, as `learn` takes them.

        Raises:
            ValueError: See `transforms.table_fit.fit_table`.
        """
        from transforms.table_fit import fit_table

        return fit_table(chunks, where=where, **self.recipe).as_json()

    def learn(self, learned: Mapping[str, Any]) -> None:
        """Take the figures of a training part.

        Raises:
            ValueError: They are none, or of a table that lacks the target.
        """
        import numpy as np

        self.statistics = table = TableStatistics.from_json(learned, where="decode/table")
        if self.target is not None and (table.target is None or table.target.name != self.target):
            has = "none" if table.target is None else repr(table.target.name)
            raise ValueError(
                f"decode/table: target is {self.target!r}, and the statistics are of a table with "
                f"target {has}; use those of a run with this target"
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
        self._taken = frozenset(self._names) | {name for name, _ in self._ids}

    @property
    def num_features(self) -> int:
        """Length of ``features``."""
        return len(self._names) + len(self._indicated)

    @property
    def indicated(self) -> tuple[str, ...]:
        """Columns whose indicators stand behind the numbers in ``features``."""
        return tuple(self._names[number] for number in self._indicated)

    @property
    def num_categories(self) -> tuple[int, ...]:
        """Ids of each of the ``categories``, with 0, the unknown."""
        return tuple(len(ids) + 1 for _, ids in self._ids)

    def __call__(self, record: Record) -> Sample:
        """Decode a row.

        Args:
            record: A row with all columns.

        Returns:
            ``features`` float32 [F], the scaled numbers and then the indicators; ``categories``
            int64 [C], 0 where it is missing or unknown; ``target`` if there is one; the fields
            that are no columns, ``index`` and ``key``.

        Raises:
            ValueError: A column is not there, or holds text or an infinite number where a number
                is needed; the target is missing; one line.
        """
        import numpy as np

        assert self.statistics is not None, "a decoder that is fitted belongs here"
        fields = record.fields
        numbers = np.array([self._number(fields, name) for name in self._names], np.float64)
        scaled, gone = self._scaled(numbers)
        if not np.isfinite(scaled).all():
            name = self._names[int(np.flatnonzero(~np.isfinite(scaled))[0])]
            raise ValueError(f"column {name!r} is too large to be scaled")
        taken = self._taken
        sample: Sample = {
            name: value
            for name, value in fields.items()
            if name not in taken and name != self.target
        }
        sample["features"] = np.concatenate([scaled, gone[self._indicated].astype(np.float32)])
        sample["categories"] = np.array(
            [self._id(fields, name, ids) for name, ids in self._ids], np.int64
        )
        if self.target is not None:
            target = self._number(fields, self.target)
            if target != target:
                raise ValueError(f"its target {self.target!r} is missing")
            sample["target"] = target
        sample["index"], sample["key"] = record.index, record.key
        return sample

    def columns(self, fields: Mapping[str, Any]) -> dict[str, Any] | None:
        """Decode many rows at once, a column at a time, to what they give one by one.

        Args:
            fields: Columns of n rows: see `datasets.protocols.ColumnStorage.take`.

        Returns:
            ``features`` float32 [n, F] and so on; None where a row is bad: which, and why, is said
            when it is decoded by itself.
        """
        import numpy as np

        assert self.statistics is not None, "a decoder that is fitted belongs here"
        names = (*self._names, *([] if self.target is None else [self.target]))
        if not all(name in fields for name in (*self._taken, *names)):
            return None
        count = len(next(iter(fields.values())))
        numbers = np.empty((count, len(names)), np.float64)
        categories = np.empty((count, len(self._ids)), np.int64)
        try:
            for place, name in enumerate(names):
                numbers[:, place] = numbers_of(fields[name])
            for place, (name, ids) in enumerate(self._ids):
                categories[:, place] = ids.of_column(fields[name])
        except ValueError:
            return None
        scaled, gone = self._scaled(numbers[:, : len(self._names)])
        decoded = {n: v for n, v in fields.items() if n not in self._taken and n != self.target}
        indicators = gone[:, self._indicated].astype(np.float32)
        decoded["features"] = np.concatenate([scaled, indicators], axis=1)
        decoded["categories"] = categories
        if self.target is not None:
            decoded["target"] = numbers[:, -1]
        bad = not np.isfinite(scaled).all() or np.isnan(numbers[:, len(self._names) :]).any()
        return None if bad else decoded

    def _scaled(self, numbers: Floats) -> tuple[NDArray[np.float32], NDArray[np.bool_]]:
        """Numbers [..., N], filled in and scaled, and which of them are missing."""
        import numpy as np

        gone = np.isnan(numbers)
        with np.errstate(over="ignore"):
            scaled = (np.where(gone, self._fills, numbers) - self._shift) / self._scale
            return scaled.astype(np.float32), gone

    @staticmethod
    def _number(fields: Mapping[str, Any], name: str) -> float:
        try:
            return number_of(fields[name])
        except KeyError:
            raise ValueError(_absent(name, fields)) from None
        except ValueError as error:
            raise ValueError(f"column {name!r}: {error}") from None

    @staticmethod
    def _id(fields: Mapping[str, Any], name: str, ids: CategoryIds) -> int:
        try:
            return ids.of(fields[name])
        except KeyError:
            raise ValueError(_absent(name, fields)) from None
        except ValueError as error:
            raise ValueError(f"column {name!r}: {error}") from None


def _absent(name: str, fields: Mapping[str, Any]) -> str:
    return f"no column {name!r}, which the training part has; columns: {', '.join(fields)}"


def _shift_and_scale(column: NumericColumn, scaling: Scaling) -> tuple[float, float]:
    """What is taken away from a number, and what the rest is divided by."""
    first, middle, third = column.quartiles
    shift, scale = {
        "standard": (column.mean, column.std),
        "min_max": (column.low, column.high - column.low),
        "robust": (middle, third - first or column.std),
        "none": (0.0, 1.0),
    }[scaling]
    return shift, scale or 1.0
