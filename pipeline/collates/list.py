"""Collate samples of any shapes into lists of tensors."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from penstock.core.registry import register
from penstock.core.sample import Batch
from penstock.pipeline.collating import FieldCollate, from_arrays, to_array


@register("collate", "list")
class ListCollate(FieldCollate):
    """Keep arrays as lists of tensors, one per sample; stack images.

    The configuration alone decides which fields are lists, whatever the shapes in a batch.

    Args:
        stacked: Fields whose arrays have equal shapes and become one tensor.
    """

    def __init__(self, *, stacked: Sequence[str] = ("image", "mask")) -> None:
        self.stacked = tuple(stacked)

    def collated(self, field: str, values: list[Any], keys: list[str]) -> Batch:
        if field not in self.stacked:
            # Copy: a batch never shares memory with a sample.
            return {field: [np.array(to_array(value)) for value in values]}
        remedy = f"an augmentation step such as a resize, or take {field!r} out of collate.stacked"
        return {field: from_arrays(field, values, keys, remedy=remedy)}
