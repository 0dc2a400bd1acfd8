"""Collate samples of any shapes into lists of tensors."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from penstock.core.registry import register
from penstock.core.sample import Batch, Sample
from penstock.pipeline.collating import (
    batch_keys,
    from_arrays,
    from_values,
    is_array,
    to_array,
    to_columns,
)


@register("collate", "list")
class ListCollate:
    """Keep arrays as lists of tensors, one per sample; stack images.

    The configuration alone decides which fields are lists, whatever the shapes in a batch.

    Args:
        stacked: Fields whose arrays have equal shapes and become one tensor.
    """

    def __init__(self, *, stacked: Sequence[str] = ("image", "mask")) -> None:
        self.stacked = tuple(stacked)

    def __call__(self, samples: list[Sample]) -> Batch:
        """Collate samples with the same fields.

        Arrays become lists of tensors, `stacked` arrays tensors [B, ...], numbers bool, int64 or
        float32 [B], and other values lists of B.
        """
        columns = to_columns(samples)
        keys = batch_keys(columns, len(samples))
        batch: Batch = {}
        for field, values in columns.items():
            if not all(is_array(value) for value in values):
                batch[field] = from_values(values)
            elif field in self.stacked:
                remedy = (
                    f"an augmentation step such as a resize, or take {field!r} out of "
                    f"collate.stacked"
                )
                batch[field] = from_arrays(field, values, keys, remedy=remedy)
            else:
                # Copy: a batch never shares memory with a sample.
                batch[field] = [np.array(to_array(value)) for value in values]
        return batch
