"""Keep numbers by name for every record: which labels it has, or values that were measured.

They lie in an index of their own, which holds as long as the label files are as they were.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from penstock.core.contracts import RecordsToLabel
from penstock.datasets.records.index import Index, cached_index, write_index
from penstock.datasets.records.labels import LABEL_VERSION

RAREST_LABEL = "rarest_label"
_UNKNOWN = -1  # of labels, which are kept in a byte each


class NumberRows:
    """A number for each name and record; satisfies `RecordAnnotations`.

    Args:
        index: The numbers of all records one after the other, and the names as its classes.
        field: What they are called in a record: ``labels``, 1 or 0, or ``values``.
    """

    def __init__(self, index: Index, field: str) -> None:
        self._index = index
        self._field = field
        self._bad = {int(record): cause for record, cause in index.metadata["bad"].items()}
        self.classes = {field: index.class_names or ()}

    @property
    def columns(self) -> dict[str, NDArray[Any]]:
        """Columns for the index, each [n].

        Of values each as ``value_<name>``, float32. Of labels `RAREST_LABEL`, int32, the one of a
        record's that fewest records have; -1: it has none.
        """
        table, names = self._table, self.classes[self._field]
        if self._field == "values":
            return {f"value_{name}": table[:, n] for n, name in enumerate(names)}
        rarest = np.full(len(table), -1, np.int32)
        counts = [int((table[:, n] == 1).sum()) for n in range(len(names))]
        for n in np.argsort(counts, kind="stable")[::-1]:  # the rarest is written last
            rarest[table[:, n] == 1] = n
        return {RAREST_LABEL: rarest}

    def fields(self, indices: NDArray[np.int64]) -> list[dict[str, Any] | str]:
        """The numbers of the records at `indices`, int64 [n], or why a record has none.

        They are float32 [K]; NaN: not known.
        """
        rows = self._table[indices].astype(np.float32)
        if self._field == "labels":
            rows[rows == _UNKNOWN] = np.nan
        return [
            self._bad.get(i) or {self._field: row}
            for i, row in zip(indices.tolist(), rows, strict=True)
        ]

    def fingerprint(self) -> str:
        """Hash of all numbers and their names."""
        return self._index.fingerprint()

    @property
    def _table(self) -> NDArray[Any]:
        names = self.classes[self._field]
        return self._index.column("number").reshape(-1, len(names))


Numbers = tuple[list[NDArray[np.float32] | str], Sequence[str]]
"""The numbers of each record, float32 [K], NaN where one is not known, or what is wrong with it;
and their names."""


def cached_numbers(
    name: str,
    settings: Mapping[str, Any],
    records: RecordsToLabel,
    *,
    field: str,
    marks: Any,
    read: Callable[[], Numbers],
    where: str,
) -> NumberRows:
    """Take the numbers of every record from the cache of indexes, or read the label file.

    Args:
        name: Of the component.
        settings: What the config says of it: JSON.
        records: What they are of.
        field: See `NumberRows`.
        marks: State of the label file: JSON.
        read: Reads it.
        where: The storage and the label file, for messages.

    Raises:
        ValueError: All records are bad.
    """
    recipe = {"annotations": name, **settings, "classes": records.classes.get(field)}
    recipe |= {
        "where": where,
        "data": records.storage.fingerprint(),
        "label_version": LABEL_VERSION,
    }

    def write(path: Path) -> None:
        rows, names = read()
        bad = {str(i): row for i, row in enumerate(rows) if isinstance(row, str)}
        if bad and len(bad) == len(rows):
            raise ValueError(
                f"{where}: no record has annotations that can be used; {records.keys[0]!r}: "
                f"{bad['0']}"
            )
        table = np.full((len(rows), len(names)), np.nan, np.float32)
        for number, row in enumerate(rows):
            if not isinstance(row, str):
                table[number] = row
        if field == "labels":
            table = np.nan_to_num(table, nan=_UNKNOWN).astype(np.int8)
        write_index(
            path,
            key_pattern="{}",
            count=table.size,
            columns={"number": table.ravel()},
            class_names=names,
            metadata={"marks": marks, "bad": bad},
            content=hashlib.blake2b(table.tobytes(), digest_size=16).hexdigest(),
        )

    index = cached_index(
        recipe, build=write, is_current=lambda index: bool(index.metadata["marks"] == marks)
    )
    return NumberRows(index, field)
