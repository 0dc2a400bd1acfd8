"""Columns of several sources put together as those of one batch."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from datasets.keys import Keys
from datasets.mix_index import SOURCE, united


class Part(NamedTuple):
    """What one source gives of a batch.

    Attributes:
        rows: Which rows of the batch, int64 [m].
        columns: Arrays [m, ...] and lists of m by field.
    """

    rows: NDArray[np.int64]
    columns: dict[str, Any]


def in_the_mix(
    columns: dict[str, Any], class_ids: Mapping[str, NDArray[np.int64] | None]
) -> dict[str, Any] | None:
    """A source's columns with class ids of the mix; None where a sample says what is wrong.

    Args:
        columns: Arrays [m, ...] and lists of m by field.
        class_ids: See `MixIndex.class_ids`.
    """
    changed = {field: ids for field, ids in class_ids.items() if field in columns}
    numbers = all(isinstance(columns[field], np.ndarray) for field in changed)
    if SOURCE in columns or not numbers or any(ids is None for ids in changed.values()):
        return None
    return {**columns, **{field: united(columns[field], ids) for field, ids in changed.items()}}


def joined(
    parts: Sequence[Part], *, allocate: Callable[[int], Any] | None = None
) -> dict[str, Any] | None:
    """The columns of a batch.

    Args:
        parts: Of every row once; no part is empty.
        allocate: Gives writable memory of so many bytes, for the largest array of more axes.

    Returns:
        Fields in the order of the first row's source; None where they are not the same in all,
        or differ in shape or kind of value: what is to become of them, samples say one by one.
    """
    fields = next(part.columns for part in parts if 0 in part.rows)
    if any(part.columns.keys() != fields.keys() for part in parts):
        return None
    count = sum(part.rows.size for part in parts)
    columns = {name: [part.columns[name] for part in parts] for name in fields}
    arrays = {}
    for name, values in columns.items():
        if all(isinstance(each, np.ndarray) for each in values):
            dtype = _common_type(values)
            if dtype is None or len({each.shape[1:] for each in values}) > 1:
                return None
            arrays[name] = (dtype, (count, *values[0].shape[1:]))
        elif not all(isinstance(each, list | Keys) for each in values):
            return None
    sizes = {n: dtype.itemsize * int(np.prod(s)) for n, (dtype, s) in arrays.items() if s[1:]}
    largest = max(sizes, key=sizes.__getitem__, default=None)
    whole: dict[str, Any] = {}
    for name, values in columns.items():
        if name not in arrays:
            whole[name] = [None] * count
            for part, each in zip(parts, values, strict=True):
                for row, value in zip(part.rows.tolist(), each, strict=True):
                    whole[name][row] = value
            continue
        dtype, shape = arrays[name]
        if allocate is not None and name == largest:
            given = np.frombuffer(allocate(sizes[name]), dtype, int(np.prod(shape)))
            whole[name] = given.reshape(shape)
        else:
            whole[name] = np.empty(shape, dtype)
        for part, each in zip(parts, values, strict=True):
            whole[name][part.rows] = each
    return whole


def _common_type(arrays: Sequence[NDArray[Any]]) -> np.dtype[Any] | None:
    """One type for all of them, or None.

    Arrays of more axes keep their type in a batch. Numbers become bool, int64 or float32, and
    what several types have in common becomes the same, unless it is floats for integers alone.
    """
    types = {array.dtype for array in arrays}
    if len(types) == 1:
        return types.pop()
    if arrays[0].ndim > 1:
        return None
    common = np.result_type(*types)
    return common if common.kind in {t.kind for t in types} else None
