"""Small batches that are made together, and are then what each would have been alone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import accumulate, pairwise
from typing import TYPE_CHECKING

import numpy as np

from penstock.core.sample import Keys
from penstock.pipeline.loader.contract import BatchTask

if TYPE_CHECKING:
    from penstock.core.sample import Batch

BUNDLE_BYTES = 6 << 20
"""The most bytes of a bundle, unless a single batch is larger.

A batch costs some 0.2 ms of Python beside the copying, as much as copying 1 MB of rows: it is
cold each time, since the pixels push it out of the core's caches. Four batches of 1.5 MB share
that; bundles of 12 MB gained nothing over these.
"""
MOST_BATCHES = 16
"""The most batches of a bundle."""


def can_join(first: BatchTask, task: BatchTask) -> bool:
    """Whether two tasks can be computed as one: of one epoch, with no record known to kill."""
    plain = all(
        each.items is None and each.positions.size and not each.quarantined
        for each in (first, task)
    )
    return plain and first.epoch == task.epoch


def joined(tasks: Sequence[BatchTask]) -> BatchTask:
    """The task of all rows of several that can be joined, under the number of the first."""
    return replace(
        tasks[0],
        positions=np.concatenate([task.positions for task in tasks]),
        valid=np.concatenate([task.valid for task in tasks]),
        indices=np.concatenate([task.indices for task in tasks]),
    )


def row_bytes(batch: Batch) -> int:
    """Count the bytes of a batch's row, as far as its tensors tell; at least 1."""
    columns = [value for value in batch.values() if hasattr(value, "nbytes") and len(value)]
    return max(1, sum(column.nbytes // len(column) for column in columns))


def rows_of_bundle(bytes_of_row: int) -> int:
    """Count the rows that a bundle holds at most; 0 where nothing is known of them."""
    return BUNDLE_BYTES // bytes_of_row if bytes_of_row else 0


def split_rows(batch: Batch, sizes: Sequence[int]) -> list[Batch] | None:
    """A batch cut into batches of these sizes, their tensors views of its own.

    Returns:
        The batches in order; None if a field is not a column or list of that many rows.
    """
    count = sum(sizes)
    for value in batch.values():
        is_column = hasattr(value, "nbytes") or isinstance(value, list | Keys)
        if not is_column or len(value) != count:
            return None
    bounds = pairwise(accumulate(sizes, initial=0))
    return [{field: value[start:stop] for field, value in batch.items()} for start, stop in bounds]
