"""Samples of equal shapes to a batch."""

from __future__ import annotations

from datasets.sample import Batch, Sample
from pipeline.columns import batch_keys, from_arrays, from_numbers, is_array, to_columns
from pipeline.registry import register


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
    columns = to_columns(samples)
    keys = batch_keys(columns, len(samples))
    batch: Batch = {}
    for field, values in columns.items():
        if all(is_array(value) for value in values):
            batch[field] = from_arrays(field, values, keys)
        else:
            numbers = from_numbers(values)
            batch[field] = values if numbers is None else numbers
    return batch
