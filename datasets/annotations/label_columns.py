"""Class ids of a column of labels: numbers that are ids already, or names."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from datasets.annotations.labels import class_ids

# Above this, a number that is larger than the records are many is taken for no class id.
_MANY_CLASSES = 1 << 20


def column_ids(
    values: NDArray[Any] | Sequence[str],
    *,
    names: Sequence[str] | None = None,
    classes: Sequence[str] | None = None,
    where: str,
) -> tuple[NDArray[np.int32], tuple[str, ...]]:
    """Class ids of a label column.

    Numbers stay the ids that they are, with `names` or, without these, their digits as names;
    `classes` changes ids so that equal names have equal ids in every part of a data set.

    Args:
        values: Integers or bools [n], or n names.
        names: Class names by number, where the data says them.
        classes: Class names by id to be used; None: those found.
        where: The storage and the column, for messages.

    Returns:
        int32 [n], and the class names by id.

    Raises:
        ValueError: A number below 0 or without a name, or a name that is not among `classes`.
    """
    if not isinstance(values, np.ndarray):
        return class_ids(values, classes, where=where)
    numbers = values.astype(np.int64)
    if (negative := np.flatnonzero(numbers < 0)).size:
        raise ValueError(
            f"{where}: label {numbers[negative[0]]} in record {negative[0]}, expected 0 or more; "
            f"give every record a label, or leave the column out"
        )
    highest = int(numbers.max(initial=-1))
    if names is None:
        if highest >= max(_MANY_CLASSES, len(numbers)):
            raise ValueError(
                f"{where}: label {highest} in {len(numbers):,} records is no class id; "
                f"name the column that holds the labels"
            )
        names = [str(i) for i in range(highest + 1)]
    elif highest >= len(names):
        raise ValueError(f"{where}: label {highest}, but the data names {len(names)} classes")
    if classes is None or tuple(classes) == tuple(names):
        return numbers.astype(np.int32), tuple(names)
    used = np.unique(numbers)
    ids = np.zeros(len(names), np.int32)
    ids[used], found = class_ids([names[i] for i in used.tolist()], classes, where=where)
    return ids[numbers], found
