"""Samples of equal shapes to a batch."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from datasets.sample import Batch, Sample
from pipeline.columns import (
    batch_keys,
    from_arrays,
    from_column,
    from_numbers,
    from_rows,
    is_array,
    largest_arrays,
    to_columns,
)
from pipeline.registry import register

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


@register("collate", "stack")
def stack(samples: list[Sample]) -> Batch:
    """Arrays of equal shape to one tensor, numbers to a tensor, the rest to lists.

    Args:
        samples: Samples with the same fields.

    Returns:
        Arrays as tensors [B, ...] of their own type; numbers as bool, int64 or float32 [B];
        strings and anything else as lists of B.

    Raises:
        ValueError: A field's shapes or types differ, or it is not in every sample.
    """
    return _stack(samples)


def stack_rows(samples: list[Sample], rows: NDArray[np.uint8]) -> Batch:
    """What `stack` gives, of samples whose images were written into memory of the batch.

    Args:
        samples: Samples with the same fields.
        rows: uint8 [B, H, W, C], used for this batch alone. It becomes ``image``, without a
            copy, where the images fit into it; else they are copied, as ever.

    Returns:
        The batch.

    Raises:
        ValueError: A field's shapes or types differ, or it is not in every sample.
    """
    return _stack(samples, rows=rows)


stack.with_rows = stack_rows  # type: ignore[attr-defined]


def stack_into(samples: list[Sample], allocate: Callable[[int], Any]) -> Batch:
    """What `stack` gives, with its largest tensor in memory that is meant for it.

    So arrays of any type, such as slices of a mapped file, are copied once: to where the batch is
    delivered.

    Args:
        samples: Samples with the same fields.
        allocate: Gives writable memory of so many bytes; it is asked once at most.

    Returns:
        The batch.

    Raises:
        ValueError: A field's shapes or types differ, or it is not in every sample.
    """
    return _stack(samples, allocate=allocate)


stack.into = stack_into  # type: ignore[attr-defined]


def _stack(
    samples: list[Sample],
    *,
    rows: NDArray[np.uint8] | None = None,
    allocate: Callable[[int], Any] | None = None,
) -> Batch:
    columns = to_columns(samples)
    keys = batch_keys(columns, len(samples))
    largest = None if allocate is None else largest_arrays(columns)
    batch: Batch = {}
    for field, values in columns.items():
        in_rows = from_rows(values, rows) if field == "image" and rows is not None else None
        if in_rows is not None:
            batch[field] = in_rows
        elif all(is_array(value) for value in values):
            memory = allocate if field == largest else None
            batch[field] = from_arrays(field, values, keys, allocate=memory)
        else:
            numbers = from_numbers(values)
            batch[field] = values if numbers is None else numbers
    return batch


def stack_columns(columns: dict[str, Any]) -> Batch:
    """What `stack` makes of the samples, made of their columns.

    Args:
        columns: Arrays [B, ...] by field; what is none, as lists of B strings, stays as it is.
            Arrays of more than one axis become the batch's own memory; numbers are copied.

    Returns:
        The batch.
    """
    return {
        field: from_column(values) if isinstance(values, np.ndarray) else values
        for field, values in columns.items()
    }


stack.columns = stack_columns  # type: ignore[attr-defined]
