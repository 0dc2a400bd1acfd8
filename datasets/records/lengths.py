"""Read record lengths, by which samplers form batches."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from penstock.core.contracts import Index


def read_lengths(
    sampler: str, index: Index | None, column: str, n: int, *, most: int | None
) -> NDArray[np.int64]:
    """Read record lengths, int64 [n], from a column of the index; `most` limits them."""
    if index is None or column not in index.columns:
        known = ", ".join(index.columns) if index is not None else ""
        raise ValueError(
            f"{sampler} sampler: no column {column!r} in the index; columns: "
            f"{known or 'none'}; name one with sampler.column, or have the storage count the "
            f"elements of a list column (parquet and arrow: dataset.storage.length_column=tokens)"
        )
    lengths: NDArray[Any] = np.asarray(index.column(column))
    if lengths.dtype.kind not in "iu" or lengths.shape != (n,):
        raise ValueError(
            f"{sampler} sampler: column {column!r} is {lengths.dtype} {list(lengths.shape)}, "
            f"expected whole numbers [{n}]; name another with sampler.column"
        )
    if lengths.size and lengths.min() < 0:
        row = int(lengths.argmin())
        raise ValueError(
            f"{sampler} sampler: column {column!r}: row {row} "
            f"({index.keys(np.array([row]))[0]}) has length {lengths[row]}; lengths are 0 or more"
        )
    lengths = lengths.astype(np.int64)
    return lengths if most is None else np.minimum(lengths, most)


def refuse_longer(
    sampler: str, index: Index | None, lengths: NDArray[np.int64], most: int, remedy: int
) -> None:
    """Raise ValueError if a record is longer than `most`; `remedy` is a fitting max_tokens."""
    row = int(lengths.argmax()) if lengths.size else 0
    if lengths.size and lengths[row] > most:
        key = index.keys(np.array([row]))[0] if index is not None else row
        raise ValueError(
            f"{sampler} sampler: record {row} ({key}) has length {lengths[row]}, expected at most "
            f"{most}; set sampler.max_tokens={remedy} or more, or sampler.max_length if a "
            f"transform cuts longer records"
        )
