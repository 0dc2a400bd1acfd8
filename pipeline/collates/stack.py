"""Collate samples of equal shapes."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from penstock.core.contracts import Allocate, Collate
from penstock.core.registry import register
from penstock.core.sample import Batch, Sample
from penstock.pipeline import collating


@register("collate", "stack")
class StackCollate(Collate):
    """Stack arrays of equal shape and numbers into tensors; the rest become lists.

    Arrays become tensors [B, ...] of their own type, numbers bool, int64 or float32 [B], and other
    values lists of B. Raises ValueError if shapes, types or fields differ.
    """

    in_place = True
    columnar = True

    def __call__(self, samples: list[Sample]) -> Batch:
        """Collate samples with the same fields."""
        return self.into(samples)

    def into(
        self,
        samples: list[Sample],
        *,
        rows: NDArray[np.uint8] | None = None,
        allocate: Allocate | None = None,
    ) -> Batch:
        """Collate samples; `rows` becomes ``image`` without a copy if the images fit."""
        columns = collating.to_columns(samples)
        keys = collating.batch_keys(columns, len(samples))
        largest = collating.largest_arrays(columns) if allocate and rows is None else None
        batch: Batch = {}
        for field, values in columns.items():
            if field == "image" and rows is not None:
                placed = collating.from_rows(values, rows)
                if placed is not None:
                    batch[field] = placed
                    continue
            if all(map(collating.is_array, values)):
                memory = allocate if field == largest else None
                batch[field] = collating.from_arrays(field, values, keys, allocate=memory)
            else:
                batch[field] = collating.from_values(values)
        return batch

    def columns(self, columns: dict[str, Any]) -> Batch:
        """Collate columns, which may become the memory of the batch; numbers are copied."""
        return {
            field: collating.from_column(values) if isinstance(values, np.ndarray) else values
            for field, values in columns.items()
        }


stack = StackCollate()
"""The collate, for use from Python."""
