"""Collate samples of equal shapes."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from penstock.core.contracts import Allocate, CollateCapabilities
from penstock.core.registry import register
from penstock.core.sample import Batch, Sample
from penstock.pipeline.collating import (
    batch_keys,
    from_arrays,
    from_column,
    from_rows,
    from_values,
    is_array,
    largest_arrays,
    to_columns,
)


@register("collate", "stack")
class StackCollate:
    """Arrays of equal shape to one tensor, numbers to a tensor, the rest to lists.

    Raises:
        ValueError: A field's shapes or types differ, or it is not in every sample.
    """

    @property
    def capabilities(self) -> CollateCapabilities:
        """It puts batches together where they are delivered, and of columns."""
        return CollateCapabilities(with_rows=self.with_rows, into=self.into, columns=self.columns)

    def __call__(self, samples: list[Sample]) -> Batch:
        """Put samples together.

        Args:
            samples: Samples with the same fields.

        Returns:
            Arrays as tensors [B, ...] of their own type; numbers as bool, int64 or float32 [B];
            strings and anything else as lists of B.
        """
        return _stack(samples)

    def with_rows(self, samples: list[Sample], rows: NDArray[np.uint8]) -> Batch:
        """Put samples together whose images were written into memory of the batch.

        Args:
            samples: Samples with the same fields.
            rows: uint8 [B, H, W, C], used for this batch alone. It becomes ``image``, without a
                copy, where the images fit into it; else they are copied, as ever.
        """
        return _stack(samples, rows=rows)

    def into(self, samples: list[Sample], allocate: Allocate) -> Batch:
        """Put samples together, with the largest tensor in memory that is meant for it.

        So arrays of any type, such as slices of a mapped file, are copied once: to where the batch
        is delivered.

        Args:
            samples: Samples with the same fields.
            allocate: Is asked once at most.
        """
        return _stack(samples, allocate=allocate)

    def columns(self, columns: dict[str, Any]) -> Batch:
        """Make of the samples' columns what a call makes of the samples.

        Args:
            columns: Arrays [B, ...] by field; what is none, as lists of B strings, stays as it is.
                Arrays of more than one axis become the batch's own memory; numbers are copied.
        """
        return {
            field: from_column(values) if isinstance(values, np.ndarray) else values
            for field, values in columns.items()
        }


stack = StackCollate()
"""The collate, for use from Python."""


def _stack(
    samples: list[Sample],
    *,
    rows: NDArray[np.uint8] | None = None,
    allocate: Allocate | None = None,
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
            batch[field] = from_values(values)
    return batch
