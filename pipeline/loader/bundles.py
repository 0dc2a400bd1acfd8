"""Bundles: small batches computed together, each equal to the batch computed alone."""

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
"""Size of a bundle at most, unless a single batch is larger.

A batch costs about 0.2 ms of Python, as much as copying 1 MB of rows, because the pixels evict this
code from the core's caches. Four batches of 1.5 MB share this cost. Bundles of 12 MB gained nothing
more.
"""
MOST_BATCHES = 16
"""Batches in a bundle at most."""


def can_join(first: BatchTask, task: BatchTask) -> bool:
    """Return whether two tasks can be computed together: one epoch, no quarantine, no stream."""
    plain = all(
        each.items is None and each.positions.size and not each.quarantined
        for each in (first, task)
    )
    return plain and first.epoch == task.epoch


def joined(tasks: Sequence[BatchTask]) -> BatchTask:
    """Return one task with all rows of several tasks, numbered as the first."""
    return replace(
        tasks[0],
        positions=np.concatenate([task.positions for task in tasks]),
        valid=np.concatenate([task.valid for task in tasks]),
        indices=np.concatenate([task.indices for task in tasks]),
    )


def row_bytes(batch: Batch) -> int:
    """Return the bytes per row of a batch's tensors, at least 1."""
    columns = [value for value in batch.values() if hasattr(value, "nbytes") and len(value)]
    return max(1, sum(column.nbytes // len(column) for column in columns))


def rows_of_bundle(bytes_of_row: int) -> int:
    """Return the rows that fit in a bundle; 0 if the size of a row is unknown."""
    return BUNDLE_BYTES // bytes_of_row if bytes_of_row else 0


def split_rows(batch: Batch, sizes: Sequence[int]) -> list[Batch] | None:
    """Split a batch into views of these sizes; return None if a field lacks that many rows."""
    count = sum(sizes)
    for value in batch.values():
        is_column = hasattr(value, "nbytes") or isinstance(value, list | Keys)
        if not is_column or len(value) != count:
            return None
    bounds = pairwise(accumulate(sizes, initial=0))
    return [{field: value[start:stop] for field, value in batch.items()} for start, stop in bounds]
