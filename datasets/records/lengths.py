"""Read record lengths, by which samplers form batches."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from penstock.core.contracts import Index


def read_column(sampler: str, index: Index | None, column: str, remedy: str) -> NDArray[np.int64]:
    """Read an integer column of the index, int64 [n]; raise ValueError if there is none."""
    known = () if index is None else index.columns
    text = f"no column {column!r} in the index; columns: {', '.join(known) or 'none'}"
    if index is not None and column in known:
        values = np.asarray(index.column(column))
        if values.dtype.kind in "iub":
            return values.astype(np.int64)
        text = f"column {column!r} is {values.dtype}, expected whole numbers"
    raise ValueError(f"{sampler} sampler: {text}; set sampler.column, or {remedy}")


def read_lengths(
    sampler: str, index: Index | None, column: str, *, most: int | None
) -> NDArray[np.int64]:
    """Read record lengths, int64 [n], from a column of the index; `most` limits them."""
    remedy = (
        "let the storage count the elements of a list column (parquet and arrow: "
        "dataset.storage.length_column=tokens)"
    )
    lengths = read_column(sampler, index, column, remedy)
    if index is not None and lengths.size and lengths.min() < 0:
        row = int(lengths.argmin())
        raise ValueError(
            f"{sampler} sampler: column {column!r}: row {row} "
            f"({index.keys(np.array([row]))[0]}) has length {lengths[row]}; lengths are 0 or more"
        )
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
