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
    """Stack arrays of equal shape and numbers into tensors; the rest become lists.

    Raises:
        ValueError: A field's shapes or types differ, or a sample lacks it.
    """

    @property
    def capabilities(self) -> CollateCapabilities:
        """Return the ways to collate into the batch's memory and from columns."""
        return CollateCapabilities(with_rows=self.with_rows, into=self.into, columns=self.columns)

    def __call__(self, samples: list[Sample]) -> Batch:
        """Collate samples with the same fields.

        Arrays become tensors [B, ...] of their own type, numbers bool, int64 or float32 [B], and
        other values lists of B.
        """
        return _stack(samples)

    def with_rows(self, samples: list[Sample], rows: NDArray[np.uint8]) -> Batch:
        """Collate samples with images in `rows`, uint8 [B, H, W, C]; other images are copied."""
        return _stack(samples, rows=rows)

    def into(self, samples: list[Sample], allocate: Allocate) -> Batch:
        """Collate samples, the largest tensor into memory from at most one call of `allocate`."""
        return _stack(samples, allocate=allocate)

    def columns(self, columns: dict[str, Any]) -> Batch:
        """Collate columns, arrays [B, ...], to the same batch as a call on the samples.

        The batch takes over arrays of several axes, and copies numbers. Lists of B values stay.
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
