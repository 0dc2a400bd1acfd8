"""Batches made as a whole: a take per field in place of a sample per row, with the same bytes."""

from __future__ import annotations

import time
from collections.abc import Callable, MutableMapping
from typing import TYPE_CHECKING, Any

from datasets.keys import Keys
from datasets.staged import gathers, gives_columns
from pipeline.registry import name_of

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from datasets.protocols import Collate, RowTransform
    from datasets.sample import Batch
    from datasets.stage_times import StageTimes
    from pipeline.loader.contract import BatchTask


class WholeBatches:
    """Makes the batches that a dataset can give as columns.

    Args:
        dataset: The dataset.
        collate: The collate; one that can has an attribute `columns`, a function of columns to
            the batch that it would make of the samples.
        steps: What is done to images and masks, or None.

    Attributes:
        has_steps: `steps` are done where the rows are gathered.
    """

    def __init__(self, dataset: Any, collate: Collate, steps: RowTransform | None) -> None:
        self._dataset = dataset
        self.has_steps = steps is not None and gathers(dataset)
        self._given: dict[str, Any] = {}
        if steps is not None and self.has_steps:
            steps.prepare()
            self._given["gather"] = steps.gathered
        self._stack: Callable[[dict[str, Any]], Batch] | None = None
        stack = getattr(collate, "columns", None)
        if stack is not None and gives_columns(dataset):
            self._stack = stack

    @property
    def likely(self) -> bool:
        """Whether batches are made so, but for a rare one: then nothing need be read ahead."""
        return self._stack is not None

    def __call__(
        self,
        task: BatchTask,
        *,
        times: StageTimes,
        allocate: Callable[[int], Any] | None,
    ) -> Batch | None:
        """The batch of a task without what the loader adds, or None: then sample by sample."""
        if self._stack is None or task.items is not None or task.quarantined:
            return None
        start = time.perf_counter()
        columns = self._dataset.fetch_columns(
            task.indices, task.positions, task.epoch, allocate=allocate, **self._given
        )
        if columns is None:
            return None
        taken = time.perf_counter()
        times.read += taken - start
        batch = self._stack(columns)
        times.collate += time.perf_counter() - taken
        return batch


def completed(
    batch: Batch, task: BatchTask, valid: NDArray[np.bool_], *, collate: Collate
) -> Batch:
    """A batch with what the loader alone knows of its rows.

    Raises:
        ValueError: What the collate gave is no dict of columns.
    """
    import torch

    if not isinstance(batch, MutableMapping):
        raise ValueError(
            f"{name_of(collate)} gave a {type(batch).__name__} for a batch, expected a dict with "
            f"a tensor or a list for each field: see Batch in datasets/sample.py"
        )
    if type(keys := batch.get("key")) is list:
        batch["key"] = Keys(keys)
    batch["valid"] = torch.from_numpy(valid)
    batch["epoch"] = torch.full((valid.size,), task.epoch)
    return batch
