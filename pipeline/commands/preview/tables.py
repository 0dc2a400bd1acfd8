"""Rows of a table in words: as they lie in the data, and as the model gets them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from datasets.protocols import Storage
from datasets.sample import BadRecord, BadSample
from pipeline.commands.preview.cells import Entry
from transforms.table_columns import TableStatistics, category_of, number_of

FIELDS = frozenset({"features", "categories", "target"})
_GAP, _MOST = "missing", 24


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

    def entries(self, sample: Any, *, is_original: bool) -> tuple[Entry, ...]:
        """The columns of one row, in the same order whichever way it is looked at.

        Args:
            sample: A sample, or a bad one, which has none.
            is_original: As the record has them; else scaled, and categories with their ids.
        """
        if isinstance(sample, BadSample):
            return ()
        fields = self.records.get(int(sample["index"]), {})
        entries = _as_they_lie(self, fields) if is_original else _as_given(self, fields, sample)
        if len(entries) > _MOST:
            left = Entry(f"… and {len(entries) - _MOST} more columns", "")
            entries = [*entries[:_MOST], left]
        return tuple(entries)


def table_rows(
    table: Any, storage: Storage, samples: Sequence[Any], keys: Mapping[str, str | None] | None
) -> TableRows | None:
    """What it takes to tell samples of a table by its columns; None for other data.

    Args:
        table: The dataset's, a decoder that has learned, or None.
        storage: Where the records lie.
        samples: Those that are shown.
        keys: New field names by field name.
    """
    statistics = getattr(table, "statistics", None)
    if not isinstance(statistics, TableStatistics):
        return None
    shown = [one for one in samples if not isinstance(one, BadSample) and "features" in one]
    indices = np.array([one["index"] for one in shown], np.int64)
    records = {}
    for record in storage.read(indices):
        if not isinstance(record, BadRecord):
            named = {(keys or {}).get(k, k): value for k, value in record.fields.items()}
            records[record.index] = {k: value for k, value in named.items() if k is not None}
    return TableRows(statistics, getattr(table, "indicated", ()), records)


def _as_they_lie(rows: TableRows, fields: Mapping[str, Any]) -> list[Entry]:
    table = rows.statistics
    columns = [(column.name, True) for column in table.numeric]
    columns += [(column.name, False) for column in table.categorical]
    entries = []
    for name, is_number in columns:
        gap = _is_gap(fields.get(name), number=is_number)
        entries.append(Entry(name, _GAP if gap else _said(fields[name]), is_gap=gap))
    if table.target is not None:
        entries.append(Entry(table.target.name, _said(fields.get(table.target.name))))
    return entries


def _as_given(rows: TableRows, fields: Mapping[str, Any], sample: Mapping[str, Any]) -> list[Entry]:
    table = rows.statistics
    entries = []
    features = np.asarray(sample["features"]).tolist()
    for column, value in zip(table.numeric, features, strict=False):
        gap = _is_gap(fields.get(column.name), number=True)
        entries.append(Entry(column.name, f"{value:+.3f}" + " filled in" * gap, is_gap=gap))
    ids = np.asarray(sample["categories"]).tolist()
    for known, number in zip(table.categorical, ids, strict=True):
        gap = _is_gap(fields.get(known.name), number=False)
        name = known.values[number - 1] if number else _GAP if gap else "unknown"
        entries.append(Entry(known.name, f"{name}, id {number}", is_gap=number == 0))
    if table.target is not None and "target" in sample:
        entries.append(Entry(table.target.name, _said(sample["target"])))
    for name, value in zip(rows.indicated, features[len(table.numeric) :], strict=True):
        entries.append(Entry(f"{name} is missing", f"{value:g}"))
    return entries


def _is_gap(value: Any, *, number: bool) -> bool:
    try:
        return number_of(value) != number_of(value) if number else category_of(value) is None
    except ValueError:
        return False


def _said(value: Any) -> str:
    return f"{float(value):.6g}" if isinstance(value, (float, np.floating)) else str(value)
