"""Weights of the records: balanced, by class, from a column, or from a file."""

from __future__ import annotations

import csv
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from datasets.protocols import Index

Weights = str | dict[str | int, float]


def read_weights(weights: Weights, n: int, index: Index | None) -> NDArray[np.float64]:
    """Weights of all records.

    Args:
        weights: ``balanced`` (every class is drawn equally often), a mapping from class name
            or id to weight (classes not named weigh 1), the name of an index column, or the
            path of a ``.npy`` or ``.csv`` file. A CSV has a column ``weight``, and either a
            column ``key`` or one row per record in index order; one bare number per line
            does as well.
        n: Number of records.
        index: Metadata of the records.

    Returns:
        float64 [n], finite, not negative, not all zero.

    Raises:
        ValueError: The weights cannot be had or make no sense; the message names the row.
    """
    if isinstance(weights, dict):
        source, values = "by class", _by_class(weights, index)
    elif weights == "balanced":
        source, values = "balanced", _balanced(index)
    elif Path(weights).suffix in (".npy", ".csv"):
        source, values = weights, _from_file(Path(weights), n, index)
    else:
        source, values = f"column {weights}", _column(weights, index)
    if values.shape != (n,):
        raise ValueError(
            f"weighted sampler: {source} has {values.size} weights (shape {values.shape}), the "
            f"data {n} records; give one weight per record"
        )
    values = values.astype(np.float64, copy=False)
    _check(values, source, index)
    return values


def _check(values: NDArray[np.float64], source: str, index: Index | None) -> None:
    bad = ~np.isfinite(values) | (values < 0)
    if bad.any():
        row = int(bad.argmax())
        raise ValueError(
            f"weighted sampler: {source}: row {row}{_key(index, row)} has weight {values[row]}; "
            f"weights are finite and not negative"
        )
    if not values.any():
        raise ValueError(
            f"weighted sampler: {source}: all {values.size} weights, rows 0 to "
            f"{values.size - 1}, are zero; at least one must be more"
        )


def _key(index: Index | None, row: int) -> str:
    return f" ({index.keys(np.array([row]))[0]})" if index is not None else ""


def _column(name: str, index: Index | None) -> NDArray[np.float64]:
    if index is None or name not in index.columns:
        known = ", ".join(index.columns) if index is not None else ""
        remedy = "; give weights by file" if name == "label" else ""
        raise ValueError(
            f"weighted sampler: no column {name!r} in the index; columns: {known or 'none'}{remedy}"
        )
    return np.asarray(index.column(name), np.float64)


def _labels(index: Index | None) -> NDArray[np.int64]:
    if index is None or "label" not in index.columns:
        raise ValueError(
            "weighted sampler: the data has no column 'label' to weigh by; give the storage "
            "labels, or sampler.weights=<path to .npy or .csv>"
        )
    labels = np.asarray(index.column("label"), np.int64)
    if labels.size and labels.min() < 0:
        row = int(labels.argmin())
        raise ValueError(
            f"weighted sampler: row {row}{_key(index, row)} has label {labels[row]}; "
            f"weighing by class needs labels from 0 up"
        )
    return labels


def _balanced(index: Index | None) -> NDArray[np.float64]:
    labels = _labels(index)
    counts = np.bincount(labels)
    return (1.0 / np.maximum(counts, 1))[labels]


def _by_class(weights: dict[str | int, float], index: Index | None) -> NDArray[np.float64]:
    labels = _labels(index)
    assert index is not None
    names = list(index.class_names or ())
    num_classes = max(int(labels.max(initial=-1)) + 1, len(names))
    table = np.ones(num_classes, np.float64)
    for name, weight in weights.items():
        if str(name) in names:
            table[names.index(str(name))] = weight
        elif str(name).isdecimal() and int(name) < num_classes:
            table[int(name)] = weight
        else:
            known = ", ".join(names[:20]) or f"0 to {num_classes - 1}"
            raise ValueError(f"weighted sampler: no class {name!r}; classes: {known}")
    return table[labels]


def _from_file(path: Path, n: int, index: Index | None) -> NDArray[np.float64]:
    if not path.is_file():
        raise ValueError(f"weighted sampler: no file {path}; give an existing .npy or .csv file")
    if path.suffix == ".npy":
        try:
            return np.load(path, mmap_mode="r", allow_pickle=False)
        except ValueError as error:
            raise ValueError(f"weighted sampler: {path} is no array of numbers: {error}") from None
    with open(path, newline="", encoding="utf-8-sig") as file:
        rows = csv.reader(file)
        header = next(rows, [])
        names = [name.strip() for name in header]
        if "weight" not in names:
            file.seek(0)
            return _numbers(path, csv.reader(file), 0)
        column = names.index("weight")
        if "key" not in names:
            return _numbers(path, rows, column)
        key_column = names.index("key")
        by_key = {row[key_column]: _number(path, row[column]) for row in rows if row}
    if index is None:
        raise ValueError(f"weighted sampler: {path} names keys, and the data has no index")
    values = np.empty(n, np.float64)
    for start in range(0, n, 65_536):
        stop = min(start + 65_536, n)
        for row, key in enumerate(index.keys(np.arange(start, stop)), start):
            if key not in by_key:
                raise ValueError(f"weighted sampler: {path} has no weight for row {row} ({key})")
            values[row] = by_key[key]
    return values


def _numbers(path: Path, rows: Iterable[list[str]], column: int) -> NDArray[np.float64]:
    numbers = (_number(path, row[column]) for row in rows if row)
    return np.fromiter(numbers, np.float64)


def _number(path: Path, text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise ValueError(f"weighted sampler: {path}: {text!r} is no number") from None
