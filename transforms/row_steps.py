"""Batch transforms that change rows, joined into one: of a batch, or while it is gathered."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from typing import TYPE_CHECKING, Any

from datasets.array_rows import taken_rows
from datasets.sample import Batch
from pipeline.columns import from_column
from transforms.batch_rows import Allocate, RowChange, RowStep, changed_rows
from transforms.gathered_rows import (
    Mirror,
    Shift,
    can_be_gathered,
    compiled_rows,
    gathered,
    shift_and_mirror,
)

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from datasets.protocols import BatchTransform


class RowSteps:
    """Several steps as one batch transform, which takes the pixels through all of them at once.

    Args:
        steps: Applied in order.
    """

    def __init__(self, steps: Sequence[RowStep]) -> None:
        self.steps = tuple(steps)

    def __call__(self, batch: Batch) -> Batch:
        """The batch after all steps; raises what they raise."""
        return changed_rows(batch, self._changes(batch))

    def prepare(self) -> None:
        """Load what is compiled, where it can be of use: half a second, at first a whole one."""
        if self._as_gathered(1, 1):
            compiled_rows()

    def gathered(
        self,
        positions: NDArray[np.int64],
        epoch: int,
        array: NDArray[Any],
        rows: NDArray[np.int64],
        allocate: Allocate,
    ) -> NDArray[Any]:
        """Rows of a larger array as the steps change them.

        Args:
            positions: Where in the epoch the rows stand, int64 [n].
            epoch: The epoch.
            array: Images or masks, [N, H, W, ...]; need not lie in memory.
            rows: Which of them, int64 [n], within 0 .. N - 1.
            allocate: Gives memory for the result; None takes ordinary memory.
        """
        import torch

        chain = self._as_gathered(*array.shape[1:3]) if array.ndim >= 3 else None
        if chain is not None and can_be_gathered(array):
            return gathered(array, rows, positions, epoch, *chain, allocate=allocate)
        epochs = torch.full((len(rows),), epoch)
        batch = {"position": torch.from_numpy(positions), "epoch": epochs}
        changes = self._changes(batch)
        if not changes:
            return taken_rows(array, rows, allocate)
        batch["image"] = from_column(taken_rows(array, rows, None))
        changed: NDArray[Any] = changed_rows(batch, changes, allocate=allocate)["image"].numpy()
        return changed

    def _changes(self, batch: Batch) -> list[RowChange]:
        """What the steps do to a batch's rows, without those that do nothing."""
        changes = [step.row_change(batch) for step in self.steps]
        return [change for change in changes if change is not None]

    def _as_gathered(self, height: int, width: int) -> tuple[Shift, Mirror] | None:
        """The whole chain as what can be done while images of this size are gathered."""
        # A subclass may do something else in its own `row_change`.
        own = [step if "as_gathered" in vars(type(step)) else None for step in self.steps]
        return shift_and_mirror([step and step.as_gathered(height, width) for step in own])


def joined_steps(transforms: Sequence[BatchTransform]) -> list[BatchTransform]:
    """The same chain with neighbours that change rows joined into `RowSteps`."""
    joined: list[Any] = []
    # A subclass may do anything in its own `__call__`.
    for by_row, run in groupby(transforms, lambda step: "row_change" in vars(type(step))):
        steps: list[Any] = list(run)
        joined += [RowSteps(steps)] if by_row else steps
    return joined
