"""Compute statistics of the columns of a table, and parse its values."""

from __future__ import annotations

import json
import math
import re
import tempfile
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from penstock.core.sample import TextColumn

_SPOOL_BYTES = 1 << 24
_MOST_DISTINCT, _MOST_CATEGORIES = 1 << 20, 10_000
_MOST_SHARE, _FEWEST_VALUES = 0.5, 20
_OTHERS = ""  # counts the categories beyond `_MOST_DISTINCT`; no category is empty
_UNNAMED = re.compile(r"|Unnamed: .*|__index_level_\d+__")  # as pandas writes its index
_DATE = re.compile(r"\d{4}-\d\d-\d\d([T ].*)?|\d\d?[./]\d\d?[./]\d{4}")
_NO_COLUMNS = frozenset({"label", "mask", "index", "key", "position"})

Column = NDArray[Any] | TextColumn | list[Any]
"""Values of a field, [n], see `core.contracts.Storage.take`; or a list of any values."""


@dataclass(frozen=True, slots=True)
class NumericColumn:
    """Statistics of a column of numbers, over the training split; `std` is the population's."""

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
    """Vocabulary of a column over the training split, the most frequent of the `values` first.

    The id of ``values[i]`` is ``i + 1``. `others` counts rows with other categories, id 0.
    """

    name: str
    values: tuple[str, ...]
    missing: int
    others: int


@dataclass(frozen=True, slots=True)
class TableStatistics:
    """Statistics in the order of the features; `left_out` columns identify the row, and why."""

    rows: int
    numeric: tuple[NumericColumn, ...]
    categorical: tuple[CategoricalColumn, ...]
    target: NumericColumn | None
    left_out: tuple[tuple[str, str], ...] = ()

    def as_json(self) -> dict[str, Any]:
        """Return plain JSON values, the same for the same table."""
        content: dict[str, Any] = json.loads(json.dumps(asdict(self)))
        return content

    @classmethod
    def from_json(cls, content: Any) -> TableStatistics:
        """Validate and read the result of `as_json`; raise ValueError if it is invalid."""
        from pydantic import TypeAdapter, ValidationError

        try:
            return TypeAdapter(cls).validate_python(content)
        except ValidationError as error:
            first = error.errors()[0]
            said = f"{'.'.join(map(str, first['loc']))}: {first['msg']}"
            raise ValueError(f"no statistics of a table ({said}), as table.json of a run") from None


def number_of(value: Any) -> float:
    """Parse a value as a number, NaN if missing; raise ValueError for text and infinity."""
    if value is None:
        return math.nan
    if not _is_number(value) or math.isinf(value):
        raise ValueError(f"{repr(value)[:40]} is not a finite number")
    return float(value)


def _is_number(value: Any) -> bool:
    return hasattr(value, "__float__") and not getattr(value, "ndim", 0)


def numbers_of(values: Column) -> NDArray[np.float64]:
    """Parse a column as `number_of` parses values, float64 [n]."""
    if not isinstance(values, np.ndarray) or values.ndim > 1 or values.dtype.kind not in "biuf":
        return np.array([number_of(value) for value in _listed(values)], np.float64)
    numbers: NDArray[np.float64] = values.astype(np.float64)
    if np.isinf(numbers).any():
        raise ValueError("a number is not finite")
    return numbers


def category_of(value: Any) -> str | None:
    """Parse a value as a category, None if missing; whole numbers become their digits."""
    if value is None or isinstance(value, str):
        return value or None
    number = number_of(value)
    if math.isnan(number):
        return None
    return str(int(value)) if number.is_integer() else repr(number)


def fit_table(
    chunks: Iterable[Mapping[str, Column]],
    *,
    numeric: Sequence[str],
    categorical: Sequence[str],
    target: str | None,
    min_count: int,
    where: str,
) -> TableStatistics:
    """Compute the exact statistics of a table in one pass over `chunks`, columns of some rows.

    Raise ValueError, which names `where`, for a missing or empty column. See `TableDecoder`.
    """
    kinds = dict.fromkeys(categorical, "text") | dict.fromkeys(numeric, "number")
    if target is not None:
        kinds[target] = "number"
    declared = tuple(kinds)
    lengths, spools, texts = _gathered(chunks, kinds, where)
    if not lengths.total():
        raise ValueError(
            f"{where}: no row to train on; lower dataset.val_fraction, or check what the data holds"
        )
    if absent := [name for name in declared if name not in lengths]:
        raise ValueError(
            f"{where}: no column {absent[0]!r}; columns: {', '.join(lengths)}; correct "
            f"dataset.decode, or the data"
        )
    numbers: dict[str, NumericColumn] = {}
    categories: list[CategoricalColumn] = []
    left_out: list[tuple[str, str]] = []
    for name in (name for name in lengths if kinds.get(name) != "other"):
        values = _read(spools.pop(name)) if name in spools else np.empty(0)
        counts = texts[name]
        if not len(values) and not counts:
            raise ValueError(
                f"{where}: column {name!r} lacks a usable value in all rows of the training part; "
                f"name another one, or leave it out with dataset.keys={{{name}:null}}"
            )
        missing = lengths[name] - len(values) - counts.total()
        if name not in declared and (why := _identifies_rows(name, values, counts, missing)):
            left_out.append((name, why))
        elif counts:
            categories.append(_categorical(name, counts, missing, min_count))
        else:
            numbers[name] = _numeric(name, values, missing)
    goal = None if target is None else numbers.pop(target)
    if not numbers and not categories:
        about = "".join(f"; {name!r} was left out: {why}" for name, why in left_out)
        raise ValueError(
            f"{where}: no column of numbers or text beside the label{about}; add one, or name what "
            f"to use with dataset.decode.categorical=[COLUMN]"
        )
    rows = max(lengths.values())
    return TableStatistics(rows, (*numbers.values(),), (*categories,), goal, (*left_out,))


def _gathered(
    chunks: Iterable[Mapping[str, Column]], kinds: dict[str, str], where: str
) -> tuple[Counter[str], dict[str, Any], dict[str, Counter[str]]]:
    """Return rows, numbers and counts of categories by column; add inferred kinds to `kinds`."""
    spools: dict[str, Any] = defaultdict(lambda: tempfile.SpooledTemporaryFile(_SPOOL_BYTES))
    texts: dict[str, Counter[str]] = defaultdict(Counter)
    lengths: Counter[str] = Counter()  # rows that have a column, in the order of the table
    for chunk in chunks:
        for name, values in chunk.items():
            lengths[name] += len(values)
            if name == "image":
                raise ValueError(
                    f"{where}: images, which dataset/decode=table does not read; type "
                    f"dataset/decode=image with a task of images, or dataset.keys={{image:null}}"
                )
            if name not in kinds and (kind := _kind_of(name, values)):
                kinds[name] = kind
            if kinds.get(name) == "number":
                spools[name].write(_usable_numbers(values).tobytes())
            elif kinds.get(name) == "text":
                counts = texts[name]
                for category, count in _usable_categories(values):
                    is_counted = category in counts or len(counts) < _MOST_DISTINCT
                    counts[category if is_counted else _OTHERS] += count
    return lengths, spools, texts


def _kind_of(name: str, values: Column) -> str | None:
    """Infer the kind of a column from its first value; None if it is empty."""
    if name in _NO_COLUMNS or (isinstance(values, np.ndarray) and values.ndim > 1):
        return "other"
    for value in _listed(values):
        if isinstance(value, str) and value:
            return "text"
        if _is_number(value) and not math.isnan(value):
            return "number"
        if not isinstance(value, str | None) and not _is_number(value):
            return "other"
    return None


def _listed(values: Column) -> list[Any]:
    return values if isinstance(values, list) else values.tolist()


def _usable_numbers(values: Column) -> NDArray[np.float64]:
    """Return the finite numbers of a column; rows with other values will be bad samples."""
    try:
        numbers = numbers_of(values)
    except ValueError:
        numbers = np.array([float(v) if _is_number(v) else math.nan for v in _listed(values)])
    return numbers[np.isfinite(numbers)]


def _usable_categories(values: Column) -> Iterator[tuple[str, int]]:
    """Yield categories of a column and their counts; rows with other values will be bad samples."""
    for value, count in Counter(_listed(values)).items():
        with suppress(ValueError):
            if category := category_of(value):
                yield category, count


def _read(spool: Any) -> NDArray[np.float64]:
    with spool:
        spool.seek(0)
        return np.frombuffer(spool.read())


def _identifies_rows(
    name: str, values: NDArray[np.float64], counts: Counter[str], missing: int
) -> str:
    """Return why a column identifies rows and is left out; empty for a feature."""
    if _UNNAMED.fullmatch(name):
        return "unnamed"
    if counts:
        if all(map(_DATE.fullmatch, counts)):
            return "dates"
        different, total = len(counts), counts.total()
        many = different > _MOST_SHARE * total and total >= _FEWEST_VALUES
        many = many or _OTHERS in counts
        return f"{different:,} different values in {total:,} rows" if many else ""
    near = 0 <= values[0] < 20 and values[-1] < values[0] + 4 * len(values) + 20
    if missing or len(values) < 2 or not near or not (np.diff(values) > 0).all():
        return ""
    return "" if (values % 1).any() else "row numbers"


def _numeric(name: str, values: NDArray[np.float64], missing: int) -> NumericColumn:
    low, high = float(values.min()), float(values.max())
    std = 0.0 if low == high else float(values.std())
    first, middle, third = np.quantile(values, [0.25, 0.5, 0.75]).tolist()
    mean = float(values.mean())
    return NumericColumn(name, len(values), missing, mean, std, low, high, (first, middle, third))


def _categorical(
    name: str, counts: Counter[str], missing: int, min_count: int
) -> CategoricalColumn:
    total = counts.total()
    del counts[_OTHERS]
    ordered = sorted(counts.items(), key=lambda item: (-item[1], item[0]))
    values = tuple(text for text, count in ordered if count >= min_count)[:_MOST_CATEGORIES]
    others = total - sum(counts[text] for text in values)
    return CategoricalColumn(name, values, missing, others)
