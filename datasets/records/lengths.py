"""Read record lengths, by which samplers form batches."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from penstock.core.contracts import Index


def read_column(sampler: str, index: Index | None, column: str, remedy: str) -> NDArray[np.int64]:
    """Read an integer column of the index, int64 [n]; raise ValueError if there is none."""
    known = () if index is None else index.columns
    if index is not None and column in known:
        values = index.column(column)
        if values.dtype.kind in "iub":
            return values.astype(np.int64)
        known = (*known, f"and {column} is {values.dtype}")
    text = f"no integer column {column!r} in the index; columns: {', '.join(known) or 'none'}"
    raise ValueError(f"{sampler} sampler: {text}; set sampler.column, or {remedy}")


def read_lengths(
    sampler: str, index: Index | None, column: str, *, most: int | None
) -> NDArray[np.int64]:
    """Read record lengths, int64 [n], from a column of the index; `most` limits them."""
    remedy = "count a list column of parquet or arrow by dataset.storage.length_column=tokens"
    lengths = read_column(sampler, index, column, remedy)
    if index is not None and lengths.min(initial=0) < 0:
        row = int(lengths.argmin())
        said = f"row {row} ({index.keys(np.array([row]))[0]}) has length {lengths[row]}"
        raise ValueError(f"{sampler} sampler: column {column!r}: {said}; lengths are 0 or more")
    return lengths if most is None else np.minimum(lengths, most)


def refuse_longer(
    sampler: str, index: Index | None, lengths: NDArray[np.int64], most: int, remedy: int
) -> None:
    """Raise ValueError if a record is longer than `most`; `remedy` is a fitting max_tokens."""
    if lengths.max(initial=0) > most:
        row = int(lengths.argmax())
        key = row if index is None else index.keys(np.array([row]))[0]
        raise ValueError(
            f"{sampler} sampler: record {row} ({key}) has length {lengths[row]}, expected at most "
            f"{most}; set sampler.max_tokens={remedy} or more, or sampler.max_length if a "
            f"transform cuts longer records"
        )
