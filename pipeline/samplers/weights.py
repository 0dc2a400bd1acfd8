"""Read the weights of records: by class, from a column, or from a file."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeGuard

import numpy as np
from numpy.typing import NDArray

from penstock.core.arrays import map_npy
from penstock.core.contracts import Index
from penstock.datasets.annotations.rows import RAREST, RAREST_LABEL
from penstock.datasets.records.label_tables import IMAGE_COLUMNS, LabelTable
from penstock.datasets.records.matching import match_keys, three

_CLASSES = {RAREST_LABEL: "labels", "label": "label", RAREST: "box_labels"}
"""Field that names the classes, by column of class ids."""


def read_weights(
    weights: str | Mapping[str | int, float],
    n: int,
    index: Index | None,
    column_of: Callable[[str], NDArray[Any] | None] | None,
) -> NDArray[np.float64]:
    """Read the weights of all records, float64 [n]; see `WeightedSampler` for `weights`."""
    if not isinstance(weights, str):
        source, values = "by class", _by_class(weights, index)
    elif weights == "balanced":
        labels = _labels(index)
        source, values = "balanced", (1.0 / np.maximum(np.bincount(labels), 1))[labels]
    elif is_file(weights):
        source, values = weights, _from_file(Path(weights), n, index)
    else:
        source, values = f"column {weights}", _column(weights, index, column_of)
    where = f"weighted sampler: {source}"
    if values.shape != (n,):
        text = f"{where} has {values.size} weights (shape {values.shape}), the data {n} records"
        raise ValueError(f"{text}; give each a weight, or a .csv with the columns key and weight")
    _check(where, index, values, "weight", ~(np.isfinite(values) & (values >= 0)))
    if not values.any():
        raise ValueError(f"{where}: all {n} weights are zero; give a record more")
    return values.astype(np.float64, copy=False)


def is_file(weights: object) -> TypeGuard[str]:
    """Return whether `weights` is the path of a file."""
    return isinstance(weights, str) and Path(weights).suffix in (".npy", ".csv", ".tsv", ".parquet")


def class_column(index: Index | None) -> str:
    """Return the column of class ids: rarest labels, then single labels, then rarest boxes."""
    for name in _CLASSES:
        if index is not None and name in index.columns:
            return name
    raise ValueError(
        "weighted sampler: no column 'label' and no boxes in the data; give the storage labels (a "
        "torch dataset: an attribute `targets`), or set sampler.weights to a file"
    )


def _check(
    where: str, index: Index | None, values: NDArray[Any], name: str, bad: NDArray[np.bool_]
) -> None:
    """Raise ValueError for the first bad value."""
    if bad.any():
        row = int(bad.argmax())
        key = f" ({index.keys(np.array([row]))[0]})" if index is not None else ""
        text = f"{where}: row {row}{key} has {name} {values[row]}"
        raise ValueError(f"{text}, expected a finite value, 0 or more")


def _column(
    name: str, index: Index | None, column_of: Callable[[str], NDArray[Any] | None] | None
) -> NDArray[np.float64]:
    known = () if index is None else index.columns
    found: Any = None
    if index is not None and name in known:
        found = index.column(name)
    elif column_of is not None:
        found = column_of(name)
    if found is None:
        raise ValueError(
            f"weighted sampler: no column of numbers {name!r} in the data; columns of its index: "
            f"{', '.join(known) or 'none'}; expected balanced, a column, a file, or a mapping"
        )
    return np.asarray(found, np.float64)


def _labels(index: Index | None) -> NDArray[np.int64]:
    """Return the class ids of all records, int64 [n]; unlabelled records form one more class."""
    column = class_column(index)
    assert index is not None
    labels = np.asarray(index.column(column), np.int64)
    if column != "label":
        return np.where(labels < 0, labels.max(initial=-1) + 1, labels)
    _check("weighted sampler: by class", index, labels, "label", labels < 0)
    return labels


def _by_class(weights: Mapping[str | int, float], index: Index | None) -> NDArray[np.float64]:
    labels = _labels(index)
    assert index is not None
    classes = {"label": index.class_names or (), **index.field_classes}
    names = list(classes.get(_CLASSES[class_column(index)]) or ())
    table = np.ones(max(int(labels.max(initial=-1)) + 1, len(names)))
    ids = {str(number): number for number in range(len(table))}
    ids |= {name: number for number, name in enumerate(names)}
    for name, weight in weights.items():
        if str(name) not in ids:
            known = ", ".join(names[:20]) or f"0 to {len(table) - 1}"
            raise ValueError(f"weighted sampler: no class {name!r}; classes: {known}")
        table[ids[str(name)]] = weight
    return table[labels]


def _from_file(path: Path, n: int, index: Index | None) -> NDArray[np.float64]:
    where = f"weighted sampler: {path}"
    if not path.is_file():
        raise ValueError(f"{where}: no file; give an existing .npy or .csv file")
    if path.suffix == ".npy":
        try:
            return map_npy(path)
        except ValueError as error:
            raise ValueError(f"{where} is not an array of numbers: {error}") from None
    table = LabelTable.read(str(path), where=where)
    if len(table.columns) == 1 and "weight" not in table.columns:
        table = LabelTable.read(str(path), header=["weight"], where=where)
    table.check("weight")
    values = table.numbers("weight")
    if (column := table.usual(IMAGE_COLUMNS)) is None:
        return values
    assert index is not None, "a table with keys needs an index"
    rows, keys = table.rows_of(column), index.keys(np.arange(n))
    entries = match_keys(keys, list(rows), place="", where=where)
    if missing := [key for key, entry in zip(keys, entries, strict=True) if entry is None]:
        raise ValueError(
            f"{where}: no weight for {len(missing):,} of {n:,} records, such as {three(missing)}"
        )
    return values[[rows[entry][-1] for entry in entries if entry is not None]]
