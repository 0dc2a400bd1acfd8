"""Small batches that are made together, and are then what each would have been alone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import accumulate, pairwise
from typing import TYPE_CHECKING

import numpy as np

from datasets.keys import Keys
from pipeline.loader.contract import BatchTask

if TYPE_CHECKING:
    from datasets.sample import Batch

BUNDLE_BYTES = 6 << 20
"""What a bundle holds at most, unless a single batch is larger.

A batch costs some 0.2 ms of Python beside the copying, as much as copying 1 MB of rows: it is
cold each time, since the pixels push it out of the core's caches. Four batches of 1.5 MB share
that; bundles of 12 MB gained nothing over these.
"""
_MOST_BATCHES = 16


class BundleSize:
    """How many batches go into the next bundle: one at first, since somebody waits for that."""

    def __init__(self) -> None:
        self._most = 1

    def next(self) -> int:
        """The most batches of the next bundle: twice as many as of the one before, up to 16."""
        most, self._most = self._most, min(2 * self._most, _MOST_BATCHES)
        return most


def can_join(first: BatchTask, task: BatchTask) -> bool:
    """Whether two tasks can be computed as one: of one epoch, with no record known to kill."""
    plain = all(each.items is None and not each.quarantined for each in (first, task))
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
    """What a row of a batch takes, as far as its tensors tell; at least 1."""
    import torch

    tensors = [value for value in batch.values() if isinstance(value, torch.Tensor) and len(value)]
    return max(1, sum(tensor.nbytes // len(tensor) for tensor in tensors))


def rows_of_bundle(bytes_of_row: int) -> int:
    """How many rows a bundle holds at most; 0 where nothing is known of them."""
    return BUNDLE_BYTES // bytes_of_row if bytes_of_row else 0


def split_rows(batch: Batch, sizes: Sequence[int]) -> list[Batch] | None:
    """A batch cut into batches of these sizes, their tensors views of its own.

    Returns:
        The batches in order; None where a field is no tensor or list of that many rows.
    """
    import torch

    count = sum(sizes)
    for value in batch.values():
        if not isinstance(value, torch.Tensor | list | Keys) or len(value) != count:
            return None
    bounds = pairwise(accumulate(sizes, initial=0))
    return [{field: value[start:stop] for field, value in batch.items()} for start, stop in bounds]
