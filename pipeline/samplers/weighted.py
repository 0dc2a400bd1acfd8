"""Draw records by weight, with or without replacement."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import numpy as np
from annotated_types import Ge
from numpy.typing import NDArray

from penstock.core.arrays import map_npy
from penstock.core.contracts import Index
from penstock.core.registry import register
from penstock.core.rng import Stream, philox_words
from penstock.datasets.annotations.label_source import RAREST, RAREST_LABEL
from penstock.datasets.records.label_tables import IMAGE_COLUMNS, LabelTable, number_of
from penstock.datasets.records.matching import match_keys, three
from penstock.pipeline.epoch_orders import StoredOrderSampler, StoredTable

_CHUNK = 1 << 20
_CLASSES = {RAREST_LABEL: "labels", "label": "label", RAREST: "box_labels"}
"""Field that names the classes, by column of class ids."""


@register("sampler", "weighted")
class WeightedSampler(StoredOrderSampler):
    """Draw records by weight, with or without replacement.

    Args:
        weights: ``balanced``, a mapping from class to weight (other classes weigh 1), a column of
            the data, or a path: a table (CSV or Parquet) with the columns key and weight, or a
            ``.npy`` of weights in record order. A record with several labels or boxes counts as its
            rarest class, and records without a label as one more class.
        replacement: Whether an epoch may draw a record more than once.
        num_samples: Positions in an epoch; null: the number of records, without replacement those
            with a weight above zero.
    """

    def __init__(
        self,
        n: int,
        index: Index,
        seed: int = 0,
        column_of: Callable[[str], NDArray[Any] | None] | None = None,
        *,
        weights: str | dict[str | int, float] = "balanced",
        replacement: bool = True,
        num_samples: Annotated[int, Ge(1)] | None = None,
    ) -> None:
        if not isinstance(weights, str) or weights == "balanced":
            column, values = _by_class(weights, index)
            # A replacement of another class would change the requested balance.
            self.same = (column,)
        elif Path(weights).suffix in (".npy", ".csv", ".tsv", ".parquet"):
            values = _from_file(Path(weights), n, index)
            self.by_content = ("weights",)
        else:
            known = weights in index.columns
            found = index.column(weights) if known else column_of and column_of(weights)
            if found is None:
                raise ValueError(
                    f"weighted sampler: no column of numbers {weights!r} in the data; index: "
                    f"{', '.join(index.columns)}; expected balanced, a column, a file or a mapping"
                )
            values = np.asarray(found)
        _check(values, f"weighted sampler: {weights}", n, index)
        values, drawable = values.astype(np.float64, copy=False), int(np.count_nonzero(values))
        if not replacement and num_samples is not None and num_samples > drawable:
            text = f"num_samples {num_samples}, but only {drawable} of {n} weights are above zero"
            raise ValueError(f"weighted sampler: {text}; lower it, or set replacement=true")
        self._replacement = replacement
        kind = "cumulative" if replacement else "weights"
        table = StoredTable(values, kind, partial(np.cumsum, values) if replacement else None)
        super().__init__(table, num_samples or (n if replacement else drawable), seed)

    def indices(self, epoch: int, start: int, stop: int) -> NDArray[np.int64]:
        if not self._replacement:
            return super().indices(epoch, start, stop)
        cumulative = self._values
        targets = self._uniform(epoch, start, stop) * cumulative[-1]
        # side="right" skips records of weight 0. A target rounded up to the total
        # belongs to the last record with a weight above 0.
        found = np.searchsorted(cumulative, targets, side="right")
        return np.minimum(found, np.searchsorted(cumulative, cumulative[-1]))

    def _order(self, epoch: int) -> NDArray[np.int64]:
        """Order records by ``log(u) / w``, descending: Efraimidis and Spirakis, IPL 97, 2006."""
        weights = self._values
        keys = np.empty(len(weights))
        for start in range(0, len(weights), _CHUNK):
            part = slice(start, min(start + _CHUNK, len(weights)))
            with np.errstate(divide="ignore"):
                keys[part] = -np.log(self._uniform(epoch, part.start, part.stop)) / weights[part]
        return np.argsort(keys, kind="stable")[: self._length]

    def _uniform(self, epoch: int, start: int, stop: int) -> NDArray[np.float64]:
        """Return a 53-bit float in (0, 1) for each position."""
        words = philox_words(self._seed, epoch, start, stop, Stream.SAMPLER)[:, 0]
        return ((words >> np.uint64(11)).astype(np.float64) + 0.5) * 2.0**-53


def _by_class(weights: Any, index: Index) -> tuple[str, NDArray[np.float64]]:
    """Return the column of class ids, and the weight of each record by its class."""
    column = next((name for name in _CLASSES if name in index.columns), None)
    if column is None:
        raise ValueError(
            "weighted sampler: no column 'label' and no boxes in the data; give the storage labels "
            "(a torch dataset: an attribute `targets`), or set sampler.weights to a file"
        )
    labels = np.asarray(index.column(column), np.int64)
    names = {"label": index.class_names, **index.field_classes}.get(_CLASSES[column]) or ()
    count = max(int(labels.max(initial=-1)) + 1, len(names))
    labels = np.where(labels < 0, count, labels)  # records without a label form one more class
    if weights == "balanced":
        return column, (1.0 / np.maximum(np.bincount(labels), 1))[labels]
    ids = {str(i): i for i in range(count)} | {name: i for i, name in enumerate(names)}
    table = np.ones(count + 1)
    for name, weight in weights.items():
        if str(name) not in ids:
            known = ", ".join(names[:20]) or f"0 to {count - 1}"
            raise ValueError(f"sampler.weights: no class {name!r}; classes: {known}")
        table[ids[str(name)]] = weight
    return column, table[labels]


def _from_file(path: Path, n: int, index: Index) -> NDArray[np.float64]:
    where = f"weighted sampler: {path}"
    if not path.is_file():
        raise ValueError(f"{where}: no file; give an existing .npy or .csv file")
    if path.suffix == ".npy":
        return map_npy(path)
    table = LabelTable.read(str(path), where=where)
    column = table.usual(IMAGE_COLUMNS) or "key"
    table.check(column, "weight")
    values = table.numbers(["weight"], number_of, "weigh each row")[:, 0]
    rows, keys = table.rows_of(column), index.keys(np.arange(n))
    entries = match_keys(keys, list(rows), place="", where=where)
    if missing := [key for key, entry in zip(keys, entries, strict=True) if entry is None]:
        raise ValueError(
            f"{where}: no weight for {len(missing):,} of {n:,} records, such as {three(missing)}"
        )
    return values[[rows[entry][-1] for entry in entries if entry is not None]]


def _check(values: NDArray[Any], where: str, n: int, index: Index) -> None:
    """Raise ValueError unless each record has a weight, and one of them is above zero."""
    if values.shape != (n,):
        text = f"{where} has weights of shape {list(values.shape)}, the data {n} records"
        raise ValueError(f"{text}; give each a weight, or a .csv with the columns key and weight")
    bad = np.flatnonzero(~(np.isfinite(values) & (values >= 0)))[:1]
    if bad.size:
        text = f"{where}: row {bad[0]} ({index.keys(bad)[0]}) has weight {values[bad[0]]}"
        raise ValueError(f"{text}, expected a finite value, 0 or more")
    if not values.any():
        raise ValueError(f"{where}: all {n} weights are zero; give a record more")
