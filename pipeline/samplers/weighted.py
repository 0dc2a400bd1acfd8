"""Records drawn by weight, with or without replacement."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from pipeline.orders import digest_of, epoch_order, open_array, signature_of, stored_array
from pipeline.registry import register
from pipeline.rng import Stream, philox_words
from pipeline.weights import read_weights

if TYPE_CHECKING:
    from datasets.protocols import Index

_CHUNK = 1 << 20


@register("sampler", "weighted")
class WeightedSampler:
    """Records drawn by weight, with or without replacement.

    With replacement every position is a draw of its own: O(log n) in a cumulative table that
    all processes of the machine map from one file. Without replacement the epoch is one
    order, computed once per machine.

    Args:
        n: Number of records.
        index: Metadata of the records, where labels and columns come from.
        seed: The run's seed.
        weights: ``balanced``, a mapping from class to weight (other classes weigh 1), an
            index column, or the path of a ``.npy`` or ``.csv`` file.
        replacement: Whether a record may be drawn more than once in an epoch.
        num_samples: Positions in an epoch; null: `n`, or without replacement the number of
            records with a weight above zero.

    Raises:
        ValueError: A weight is negative, infinite or NaN, all are zero, or more draws without
            replacement are asked for than there are weights above zero.
    """

    def __init__(
        self,
        n: int,
        index: Index | None = None,
        seed: int = 0,
        *,
        weights: str | dict[str | int, float] = "balanced",
        replacement: bool = True,
        num_samples: int | None = None,
    ) -> None:
        values = read_weights(weights, n, index)
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
        # A replacement of another class would change the balance that was asked for.
        self.same: str | None = "label" if by_class else None

    def __len__(self) -> int:
        return self._length

    def fingerprint(self) -> str:
        """Hash of the weights, wherever they came from."""
        return self._digest

    def indices(self, epoch: int, start: int, stop: int) -> NDArray[np.int64]:
        """Record indices at positions ``start .. stop - 1`` of `epoch`, int64 [stop - start]."""
        if not self._replacement:
            signature = signature_of(
                sampler="weighted", seed=self._seed, n=self._length, weights=self._digest
            )
            order = epoch_order(signature, epoch, self._length, lambda: self._weighted_order(epoch))
            return np.array(order[start:stop])
        cumulative = open_array(self._table)
        words = philox_words(self._seed, epoch, start, stop, Stream.SAMPLER)[:, 0]
        targets = _uniform(words) * cumulative[-1]
        # side="right" steps over records of weight 0. Rounding may lift a target to the very
        # top: it belongs to the last record that weighs something.
        found = np.searchsorted(cumulative, targets, side="right")
        last = np.searchsorted(cumulative, cumulative[-1], side="left")
        return np.minimum(found, last).astype(np.int64)

    def _weighted_order(self, epoch: int) -> NDArray[np.int64]:
        """Largest ``log(u) / w`` first.

        Efraimidis and Spirakis, "Weighted random sampling with a reservoir", IPL 97, 2006.
        """
        weights = open_array(self._table)
        keys = np.empty(self._n, np.float64)
        for start in range(0, self._n, _CHUNK):
            stop = min(start + _CHUNK, self._n)
            words = philox_words(self._seed, epoch, start, stop, Stream.SAMPLER)[:, 0]
            with np.errstate(divide="ignore"):
                keys[start:stop] = np.log(_uniform(words)) / weights[start:stop]
        np.negative(keys, out=keys)
        return np.argsort(keys, kind="stable")[: self._length]


def _uniform(words: NDArray[np.uint64]) -> NDArray[np.float64]:
    """Floats in (0, 1), 53 bits, from random words, uint64 [n]."""
    return ((words >> np.uint64(11)).astype(np.float64) + 0.5) * 2.0**-53


def _store(values: NDArray[np.float64], digest: str, *, cumulative: bool) -> Path:
    """File of the weights, or of their running sum, that all processes map."""

    def fill(table: NDArray[Any]) -> None:
        total = np.longdouble(0)
        for start in range(0, values.size, _CHUNK):
            chunk: NDArray[Any] = values[start : start + _CHUNK]
            if cumulative:
                # Summed in extended precision: 10^8 weights lose nothing that float64 could hold.
                chunk = np.cumsum(chunk, dtype=np.longdouble) + total
                total = chunk[-1]
            table[start : start + _CHUNK] = chunk

    kind = "cumulative" if cumulative else "weights"
    name = f"table-{kind}-{digest}"
    return stored_array(name, np.float64, values.size, fill, what=f"table of {kind}")
