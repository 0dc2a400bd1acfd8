"""Draw records by weight, with or without replacement."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Annotated, Any

import numpy as np
from annotated_types import Ge
from numpy.typing import NDArray

from penstock.core.contracts import Index
from penstock.core.registry import register
from penstock.core.rng import Stream, philox_words
from penstock.pipeline.epoch_orders import StoredOrderSampler, StoredTable
from penstock.pipeline.samplers.weights import class_column, is_file, read_weights

_CHUNK = 1 << 20


@register("sampler", "weighted")
class WeightedSampler(StoredOrderSampler):
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
        num_samples: Annotated[int, Ge(1)] | None = None,
    ) -> None:
        values = read_weights(weights, n, index, column_of)
        drawable = int(np.count_nonzero(values))
        if not replacement and num_samples is not None and num_samples > drawable:
            raise ValueError(
                f"weighted sampler: num_samples {num_samples} without replacement, but only "
                f"{drawable} of {n} records have a weight above zero; lower num_samples or set "
                f"replacement=true"
            )
        if is_file(weights):
            self.by_content = ("weights",)
        elif weights == "balanced" or not isinstance(weights, str):
            # A replacement of another class would change the requested balance.
            self.same = (class_column(index),)
        self._replacement = replacement
        kind, fill = "weights", None
        if replacement:
            kind, fill = "cumulative", partial(_accumulate, values)
        table = StoredTable(values, kind, fill=fill)
        super().__init__(table, num_samples or (n if replacement else drawable), seed)

    def uses(self) -> NDArray[np.float64]:
        return np.diff(self._values, prepend=0.0) if self._replacement else self._values

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


def _accumulate(values: NDArray[np.float64], sums: NDArray[np.float64]) -> None:
    """Sum weights in extended precision, so that 10^8 weights lose no float64 precision."""
    total = np.longdouble(0)
    for start in range(0, values.size, _CHUNK):
        part = np.cumsum(values[start : start + _CHUNK], dtype=np.longdouble) + total
        sums[start : start + _CHUNK], total = part, part[-1]
