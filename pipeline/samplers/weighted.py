"""Draw records by weight, with or without replacement."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeGuard

import numpy as np
from numpy.typing import NDArray

from penstock.core.arrays import map_npy
from penstock.core.contracts import Index, SamplerCapabilities
from penstock.core.machine_cache import signature_of
from penstock.core.registry import register
from penstock.core.rng import Stream, philox_words
from penstock.datasets.annotations.rows import RAREST, RAREST_LABEL
from penstock.datasets.records.label_tables import IMAGE_COLUMNS, LabelTable, number_of
from penstock.datasets.records.matching import match_keys, three
from penstock.pipeline.epoch_orders import StoredTable, digest_of, epoch_order

_CHUNK = 1 << 20
_CLASSES = {RAREST_LABEL: "labels", "label": "label", RAREST: "box_labels"}
"""Field that names the classes, by column of class ids."""


@register("sampler", "weighted")
class WeightedSampler:
    """Draw records by weight, with or without replacement.

    With replacement, each position is an independent draw in O(log n), from a table that the
    processes of a machine share. Without replacement, an epoch's order is computed once per
    machine.

    Args:
        weights: ``balanced``, a mapping from class to weight (other classes weigh 1), a column of
            the data, or a path: a table (CSV or Parquet) with the columns key and weight, or a
            ``.npy`` or ``.csv`` of weights in record order. A record with several labels or boxes
            counts as its rarest class.
        replacement: Whether an epoch may draw a record more than once.
        num_samples: Positions in an epoch; null: the number of records, without replacement those
            with a weight above zero.
    """

    def __init__(
        self,
        n: int,
        index: Index | None = None,
        seed: int = 0,
        column_of: Callable[[str], NDArray[Any] | None] | None = None,
        *,
        weights: str | dict[str | int, float] = "balanced",
        replacement: bool = True,
        num_samples: int | None = None,
    ) -> None:
        values = _read_weights(weights, n, index, column_of)
        if num_samples is not None and num_samples < 1:
            raise ValueError(f"weighted sampler: num_samples is {num_samples}; needs 1 or more")
        drawable = int(np.count_nonzero(values))
        if not replacement and num_samples is not None and num_samples > drawable:
            raise ValueError(
                f"weighted sampler: num_samples {num_samples} without replacement, but only "
                f"{drawable} of {n} records have a weight above zero; lower num_samples or set "
                f"replacement=true"
            )
        self._n = n
        self._seed = seed
        self._replacement = replacement
        self._length = num_samples or (n if replacement else drawable)
        self._digest = digest_of(values)
        self._table = _store(values, self._digest, cumulative=replacement)
        by_class = weights == "balanced" or isinstance(weights, dict)
        # A replacement of another class would change the requested balance.
        self._same = (_class_column(index),) if by_class else ()
        # A file of weights is identified by its content, not its path.
        self._by_content = ("weights",) if _is_file(weights) else ()

    @property
    def capabilities(self) -> SamplerCapabilities:
        """Return the weights and their hash, and the class column if it decides the weights."""
        return SamplerCapabilities(
            same=self._same,
            fingerprint=self.fingerprint,
            by_content=self._by_content,
            uses=self.uses,
        )

    def __len__(self) -> int:
        return self._length

    def fingerprint(self) -> str:
        """Return a hash of the weights."""
        return self._digest

    def uses(self) -> NDArray[np.float64]:
        """Return the weights of all records, float64 [n]."""
        table = self._table.array
        return np.diff(table, prepend=0.0) if self._replacement else table

    def indices(self, epoch: int, start: int, stop: int) -> NDArray[np.int64]:
        """Return the records at positions ``start .. stop - 1`` of `epoch`, int64."""
        if not self._replacement:
            signature = signature_of(
                sampler="weighted", seed=self._seed, n=self._length, weights=self._digest
            )
            order = epoch_order(signature, epoch, self._length, lambda: self._weighted_order(epoch))
            return np.array(order[start:stop])
        cumulative = self._table.array
        words = philox_words(self._seed, epoch, start, stop, Stream.SAMPLER)[:, 0]
        targets = _uniform(words) * cumulative[-1]
        # side="right" skips records of weight 0. A target rounded up to the total
        # belongs to the last record with a weight above 0.
        found = np.searchsorted(cumulative, targets, side="right")
        last = np.searchsorted(cumulative, cumulative[-1], side="left")
        return np.minimum(found, last).astype(np.int64)

    def _weighted_order(self, epoch: int) -> NDArray[np.int64]:
        """Order records by ``log(u) / w``, descending: Efraimidis and Spirakis, IPL 97, 2006."""
        weights = self._table.array
        keys = np.empty(self._n, np.float64)
        for start in range(0, self._n, _CHUNK):
            stop = min(start + _CHUNK, self._n)
            words = philox_words(self._seed, epoch, start, stop, Stream.SAMPLER)[:, 0]
            with np.errstate(divide="ignore"):
                keys[start:stop] = np.log(_uniform(words)) / weights[start:stop]
        np.negative(keys, out=keys)
        return np.argsort(keys, kind="stable")[: self._length]


def _uniform(words: NDArray[np.uint64]) -> NDArray[np.float64]:
    """Convert random words, uint64 [n], to 53-bit floats in (0, 1)."""
    return ((words >> np.uint64(11)).astype(np.float64) + 0.5) * 2.0**-53


def _store(values: NDArray[np.float64], digest: str, *, cumulative: bool) -> StoredTable:
    def fill(table: NDArray[Any]) -> None:
        total = np.longdouble(0)
        for start in range(0, values.size, _CHUNK):
            chunk: NDArray[Any] = values[start : start + _CHUNK]
            if cumulative:
                # Summed in extended precision, so that 10^8 weights lose no float64 precision.
                chunk = np.cumsum(chunk, dtype=np.longdouble) + total
                total = chunk[-1]
            table[start : start + _CHUNK] = chunk

    kind = "cumulative" if cumulative else "weights"
    name = f"table-{kind}-{digest}"
    return StoredTable(name, np.float64, values.size, fill, what=f"table of {kind}")


def _read_weights(
    weights: str | dict[str | int, float],
    n: int,
    index: Index | None,
    column_of: Callable[[str], NDArray[Any] | None] | None,
) -> NDArray[np.float64]:
    """Read the weights of all records, float64 [n]; see `WeightedSampler` for `weights`."""
    if isinstance(weights, dict):
        source, values = "by class", _by_class(weights, index)
    elif weights == "balanced":
        labels = _labels(index)
        source, values = "balanced", (1.0 / np.maximum(np.bincount(labels), 1))[labels]
    elif _is_file(weights):
        source, values = weights, _from_file(Path(weights), n, index)
    else:
        source, values = f"column {weights}", _column(weights, index, column_of)
    if values.shape != (n,):
        raise ValueError(
            f"weighted sampler: {source} has {values.size} weights (shape {values.shape}), the "
            f"data {n} records; give one weight per record, or, for any order and any split, a "
            f".csv with the columns key and weight"
        )
    values = values.astype(np.float64, copy=False)
    _check(values, source, index)
    return values


def _is_file(weights: object) -> TypeGuard[str]:
    return isinstance(weights, str) and Path(weights).suffix in (".npy", ".csv", ".tsv", ".parquet")


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


def _column(
    name: str, index: Index | None, column_of: Callable[[str], NDArray[Any] | None] | None
) -> NDArray[np.float64]:
    if index is not None and name in index.columns:
        return np.asarray(index.column(name), np.float64)
    found = None if column_of is None else column_of(name)
    if found is None:
        known = ", ".join(index.columns) if index is not None else ""
        raise ValueError(
            f"weighted sampler: no column of numbers {name!r} in the data; columns of its index: "
            f"{known or 'none'}; expected balanced, a column, a path ending in .npy or .csv (with "
            f"the columns key and weight), or a mapping by class"
        )
    return np.asarray(found, np.float64)


def _class_column(index: Index | None) -> str:
    """Return the column of class ids: rarest labels, then single labels, then rarest boxes."""
    for name in _CLASSES:
        if index is not None and name in index.columns:
            return name
    raise ValueError(
        "weighted sampler: the data has neither a column 'label' nor boxes; give the "
        "storage labels (a torch dataset: an attribute `targets`), or sampler.weights=<path to "
        ".npy or .csv>"
    )


def _labels(index: Index | None) -> NDArray[np.int64]:
    """Return the class ids of all records, int64 [n]; unlabelled records form one more class."""
    column = _class_column(index)
    assert index is not None
    labels = np.asarray(index.column(column), np.int64)
    if column != "label":
        return np.where(labels < 0, labels.max(initial=-1) + 1, labels)
    if labels.size and labels.min() < 0:
        row = int(labels.argmin())
        raise ValueError(
            f"weighted sampler: row {row}{_key(index, row)} has label {labels[row]}; "
            f"weighing by class needs labels from 0 up"
        )
    return labels


def _by_class(weights: dict[str | int, float], index: Index | None) -> NDArray[np.float64]:
    labels = _labels(index)
    assert index is not None
    classes = {"label": index.class_names or (), **index.field_classes}
    names = list(classes.get(_CLASSES[_class_column(index)]) or ())
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
            return map_npy(path)
        except ValueError as error:
            raise ValueError(f"weighted sampler: {path} is not a numeric array: {error}") from None
    where = f"weighted sampler: {path}"
    table = LabelTable.read(str(path), where=where)
    if len(table.columns) == 1 and "weight" not in table.columns:
        table = LabelTable.read(str(path), header=["weight"], where=where)
    table.check("weight")
    values = np.array([_number(table, row) for row in range(len(table.lines))], np.float64)
    if (column := table.usual(IMAGE_COLUMNS)) is None:
        return values
    if index is None:
        raise ValueError(f"{where} names keys, and the data lacks an index")
    rows = table.rows_of(column)
    keys = index.keys(np.arange(n))
    entries = match_keys(keys, list(rows), place="", where=where)
    if missing := [key for key, entry in zip(keys, entries, strict=True) if entry is None]:
        raise ValueError(
            f"{where} lacks weights for {len(missing):,} of {n:,} records, such as {three(missing)}"
        )
    return values[[rows[entry][-1] for entry in entries if entry is not None]]


def _number(table: LabelTable, row: int) -> float:
    try:
        return number_of(table.columns["weight"][row], "weight")
    except ValueError as error:
        raise ValueError(f"{table.where}: {table.at(row)}: {error}") from None
