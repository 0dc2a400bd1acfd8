"""Change the rows of a batch in any layout and on any device; join such steps."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from penstock.core.contracts import BatchTransform
from penstock.core.sample import Batch

if TYPE_CHECKING:
    import torch

_FIXED = ("boxes", "keypoints")
_MOST_PIXEL_BYTES = 512  # limit of OpenCV's flip, in bytes a pixel
_PIECE_BYTES = 2 << 20  # small enough that the next change reads from the cache


@dataclass(frozen=True, slots=True)
class RowChange:
    """A step's change of a batch's rows, the same in NumPy and in torch.

    Both functions take rows and their slice of the batch, and do not change their input.

    Attributes:
        pixels: Maps uint8 [n, H, W, C] on the CPU to new rows.
        tensors: Maps [n, H, W, ...] of any type on any device to new rows.
    """

    pixels: Callable[[NDArray[np.uint8], slice], NDArray[np.uint8]]
    tensors: Callable[[torch.Tensor, slice], torch.Tensor]


class RowStep(ABC):
    """A batch transform that only changes ``image`` and ``mask``, row by row."""

    @abstractmethod
    def row_change(self, batch: Batch) -> RowChange | None:
        """Return the change of this batch's rows, or None."""

    def __call__(self, batch: Batch) -> Batch:
        """Change every row.

        Args:
            batch: With ``image`` uint8 [B, H, W, C] or float [B, C, H, W], perhaps ``mask``
                [B, H, W], or lists of these without B; ``epoch`` and ``position`` int64 [B].

        Raises:
            ValueError: The batch has boxes or keypoints, or images are too small.
        """
        return RowSteps([self])(batch)


def refuse_fixed_fields(batch: Batch, step: str) -> None:
    """Raise ValueError if a batch has boxes or keypoints, which the step does not move."""
    for field in _FIXED:
        if field in batch:
            raise ValueError(
                f"augment.device.{step}: the batch has {field}, which it would leave where they "
                f"are; take it out, and augment per sample in augment.train, or drop them "
                f"with dataset.keys={{{field}:null}}"
            )


def changed_rows(batch: Batch, changes: Sequence[RowChange]) -> Batch:
    """Apply changes to ``image`` and ``mask`` of a batch, in order."""
    if not changes:
        return batch
    fields = [field for field in ("image", "mask") if field in batch]
    return {**batch, **{field: _changed(batch[field], changes) for field in fields}}


def _changed(value: Any, changes: Sequence[RowChange]) -> Any:
    if isinstance(value, list):
        return [_in_layout(one[None], changes, row)[0] for row, one in enumerate(value)]
    return _in_layout(value, changes, 0)


def _in_layout(image: torch.Tensor, changes: Sequence[RowChange], first: int) -> torch.Tensor:
    """Apply changes with the channels last, and restore the layout."""
    if image.is_floating_point() and image.ndim == 4:
        last = image.permute(0, 2, 3, 1)
        return _applied(last, changes, first).permute(0, 3, 1, 2)
    return _applied(image, changes, first)


def _applied(image: torch.Tensor, changes: Sequence[RowChange], first: int) -> torch.Tensor:
    """Apply changes to [n, H, W, ...], the rows of a batch from `first` on."""
    if not on_cpu(image):
        for change in changes:
            image = change.tensors(image, slice(first, first + len(image)))
        return image
    import torch

    pixels = _bytes_of(image)
    count = max(1, _PIECE_BYTES // pixels[:1].nbytes)
    result = None
    for start in range(0, len(pixels), count):
        piece = pixels[start : start + count]
        for change in changes:
            piece = change.pixels(piece, slice(first + start, first + start + len(piece)))
        if len(piece) == len(pixels):
            result = np.ascontiguousarray(piece)
            break
        if result is None:
            result = np.empty((len(pixels), *piece.shape[1:]), np.uint8)
        result[start : start + len(piece)] = piece
    assert result is not None, "on_cpu takes no batch without pixels"
    moved = torch.from_numpy(result)
    if image.dtype is torch.uint8 and image.ndim == 4:
        return moved
    return moved.view(image.dtype).reshape(*moved.shape[:3], *image.shape[3:])


def on_cpu(image: torch.Tensor) -> bool:
    """Return whether NumPy and OpenCV can process [B, H, W, ...].

    They are faster than torch on the CPU, and compute in the calling thread; torch would start
    threads of its own in each worker.
    """
    if image.device.type != "cpu" or not all(image.shape):
        return False
    return image.itemsize * math.prod(image.shape[3:]) <= _MOST_PIXEL_BYTES


def _bytes_of(image: torch.Tensor) -> NDArray[np.uint8]:
    """Return the bytes of the pixels of [B, H, W, ...], contiguous uint8 [B, H, W, C].

    Contiguous bytes need no torch operation, each of which would release the GIL.
    """
    import torch

    if image.dtype is torch.uint8 and image.ndim == 4 and image.is_contiguous():
        return image.numpy()
    flat = image.detach().contiguous().reshape(*image.shape[:3], -1)
    return flat.view(torch.uint8).numpy()


class RowSteps:
    """Several row steps as one batch transform, which applies all of them to a piece at once."""

    def __init__(self, steps: Sequence[RowStep]) -> None:
        self.steps = tuple(steps)

    def __call__(self, batch: Batch) -> Batch:
        """Apply all steps."""
        return changed_rows(batch, self._changes(batch))

    def _changes(self, batch: Batch) -> list[RowChange]:
        """Return the changes of all steps that change this batch."""
        changes = [step.row_change(batch) for step in self.steps]
        return [change for change in changes if change is not None]


def joined_steps(transforms: Sequence[BatchTransform]) -> list[BatchTransform]:
    """Join neighbouring row steps into `RowSteps`, except steps with a `__call__` of their own."""
    joined: list[Any] = []
    for by_row, run in groupby(transforms, lambda step: type(step).__call__ is RowStep.__call__):
        steps: list[Any] = list(run)
        joined += [RowSteps(steps)] if by_row else steps
    return joined
