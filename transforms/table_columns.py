"""What is known of the columns of a table, and how one value is read."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

_VERSION = 1


@dataclass(frozen=True, slots=True)
class NumericColumn:
    """Figures of a column of numbers, over the training part.

    Attributes:
        name: The column.
        count: Values that are there.
        missing: Rows without one.
        mean: Their mean.
        std: Their standard deviation, the root of the mean square distance; 0 if all are equal.
        low: The least.
        high: The greatest.
        quartiles: The values below which a quarter, half and three quarters lie.
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
    """The vocabulary of a column of categories, of the training part.

    Attributes:
        name: The column.
        values: Categories, the most frequent first; the id of ``values[i]`` is ``i + 1``.
        missing: Rows without one.
        others: Rows whose category is too rare for the vocabulary; their id is 0.
    """

    name: str
    values: tuple[str, ...]
    missing: int
    others: int


@dataclass(frozen=True, slots=True)
class TableStatistics:
    """All that samples and models need to know of a table; plain JSON on disk.

    Attributes:
        rows: Rows that were looked at.
        numeric: Columns of numbers, in the order of the features.
        categorical: Columns of categories, in the order of their ids in a sample.
        target: The number that is to be predicted, or None.
    """

    rows: int
    numeric: tuple[NumericColumn, ...]
    categorical: tuple[CategoricalColumn, ...]
    target: NumericColumn | None

    def as_json(self) -> dict[str, Any]:
        """Plain values, the same for the same table."""
        return {"version": _VERSION, **json.loads(json.dumps(asdict(self)))}

    @classmethod
    def from_json(cls, content: Any, *, where: str) -> TableStatistics:
        """What `as_json` gave.

        Raises:
            ValueError: It is something else.
        """
        try:
            if content["version"] != _VERSION:
                raise ValueError(f"version {content['version']!r}, expected {_VERSION}")
            return cls(
                rows=int(content["rows"]),
                numeric=tuple(map(_numeric, content["numeric"])),
                categorical=tuple(
                    CategoricalColumn(**{**column, "values": tuple(column["values"])})
                    for column in content["categorical"]
                ),
                target=None if content["target"] is None else _numeric(content["target"]),
            )
        except (KeyError, TypeError, ValueError) as error:
            raise ValueError(
                f"{where}: no statistics of a table ({type(error).__name__}: {error}); give the "
                f"table.json of a run"
            ) from error


def _numeric(content: Mapping[str, Any]) -> NumericColumn:
    first, second, third = (float(value) for value in content["quartiles"])
    return NumericColumn(**{**content, "quartiles": (first, second, third)})


def read_statistics(path: str | Path) -> TableStatistics:
    """The statistics in a file, such as a run's ``table.json``.

    Raises:
        ValueError: It is not there or holds something else.
    """
    try:
        content = json.loads(Path(path).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ValueError(
            f"statistics: {path} cannot be read ({error}); give the table.json of a run"
        ) from error
    return TableStatistics.from_json(content, where=str(path))


def number_of(value: Any) -> float:
    """A value as a number, NaN where it is missing.

    Raises:
        ValueError: It is text or infinite.
    """
    if value is None:
        return math.nan
    if isinstance(value, str | bytes) or not hasattr(value, "__float__") or _has_axes(value):
        raise ValueError(f"{_shown(value)} is no number")
    number = float(value)
    if math.isinf(number):
        raise ValueError(f"{number} is no finite number")
    return number


def category_of(value: Any) -> str | None:
    """A value as a category, None where it is missing; whole numbers are their digits.

    Raises:
        ValueError: It is neither text nor a number.
    """
    if value is None or (isinstance(value, str) and not value):
        return None
    if isinstance(value, str):
        return value
    if isinstance(value, bytes) or not hasattr(value, "__float__") or _has_axes(value):
        raise ValueError(f"{_shown(value)} is neither text nor a number")
    number = float(value)
    if math.isnan(number):
        return None
    return str(int(value)) if number.is_integer() else repr(number)


def _has_axes(value: Any) -> bool:
    return getattr(value, "ndim", 0) > 0


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 40 else f"{text[:37]}..."
