"""What is known of the columns of a table, and how one value is read."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from datasets.sample import TextColumn

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


def numbers_of(values: Any) -> NDArray[np.float64]:
    """A column as `number_of` reads its values.

    Args:
        values: [n], see `datasets.protocols.ColumnStorage.take`.

    Raises:
        ValueError: It refuses one of them.
    """
    if isinstance(values, TextColumn):
        if (values.places >= 0).any():
            raise ValueError("texts are no numbers")
        return np.full(len(values), np.nan)
    _refuse_others(values)
    numbers: NDArray[np.float64] = np.ma.filled(values.astype(np.float64), np.nan)
    if np.isinf(numbers).any():
        raise ValueError("a number is not finite")
    return numbers


class CategoryIds:
    """The ids of a column of categories; what has none, and what is missing, is 0.

    Args:
        values: Categories, the first of which has the id 1.
    """

    def __init__(self, values: Iterable[str]) -> None:
        self._ids = {text: number for number, text in enumerate(values, start=1)}
        self._looked_up: tuple[Any, Any] = None, None  # in one: threads read it at any time

    def __len__(self) -> int:
        return len(self._ids)

    def of(self, value: Any) -> int:
        """The id of one value.

        Raises:
            ValueError: It is neither text nor a number.
        """
        category = category_of(value)
        return 0 if category is None else self._ids.get(category, 0)

    def of_column(self, values: Any) -> NDArray[np.int64]:
        """The ids of a column.

        Args:
            values: [n], see `datasets.protocols.ColumnStorage.take`.

        Raises:
            ValueError: `of` refuses one of them.
        """
        if isinstance(values, TextColumn):
            # Batch after batch has the same texts: then they are looked up once.
            texts, ids = self._looked_up
            if texts is not values.texts:
                ids = np.array(list(map(self.of, values.texts)), np.int64)
                self._looked_up = values.texts, ids
            return np.asarray(ids[values.places])
        _refuse_others(values)
        different, places = np.unique(np.ma.getdata(values), return_inverse=True)
        ids = np.array([self.of(value) for value in different.tolist()], np.int64)
        return np.where(np.ma.getmaskarray(values), 0, ids[places])

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "_looked_up": (None, None)}


def _refuse_others(values: NDArray[Any]) -> None:
    if values.ndim != 1 or values.dtype.kind not in "biuf":
        raise ValueError("arrays are neither text nor numbers")


def _has_axes(value: Any) -> bool:
    return getattr(value, "ndim", 0) > 0


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 40 else f"{text[:37]}..."
