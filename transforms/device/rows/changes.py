"""Change the rows of a batch, whatever its layout and wherever it is; join steps that do so."""

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
_MOST_PIXEL_BYTES = 512  # channels of bytes that OpenCV mirrors
_PIECE_BYTES = 2 << 20  # what a change wrote is near the core when the next one reads it


@dataclass(frozen=True, slots=True)
class RowChange:
    """A step's change of the rows of a batch, the same in NumPy and in torch.

    The first two functions take some rows and which of the batch these are, and leave what they
    are given as it is.

    Attributes:
        pixels: Takes uint8 [n, H, W, C] in ordinary memory, and gives the like.
        tensors: Takes [n, H, W, ...] of any type on any device, and gives the like.
    """

    pixels: Callable[[NDArray[np.uint8], slice], NDArray[np.uint8]]
    tensors: Callable[[torch.Tensor, slice], torch.Tensor]


class RowStep(ABC):
    """A batch transform that changes ``image`` and ``mask`` row by row, and nothing else."""

    @abstractmethod
    def row_change(self, batch: Batch) -> RowChange | None:
        """Say what it does to the rows of this batch; None: nothing."""

    def __call__(self, batch: Batch) -> Batch:
        """Change every row.

        Args:
            batch: With ``image`` uint8 [B, H, W, C] or float [B, C, H, W], perhaps ``mask``
                [B, H, W], or lists of these without B; ``epoch`` and ``position`` int64 [B].

        Returns:
            The batch with new images and masks.

        Raises:
            ValueError: The batch holds boxes or keypoints, which would have to move too, or the
                step cannot be done to images of this size.
        """
        return RowSteps([self])(batch)


def refuse_fixed_fields(batch: Batch, step: str) -> None:
    """Refuse a batch with fields that moved pixels would leave where they are.

    Raises:
        ValueError: The batch holds boxes or keypoints.
    """
    for field in _FIXED:
        if field in batch:
            raise ValueError(
                f"augment.device.{step}: the batch has {field}, which it would leave where they "
                f"are; take it out, and augment per sample in augment.train, or drop them "
                f"with dataset.keys={{{field}:null}}"
            )


def changed_rows(batch: Batch, changes: Sequence[RowChange]) -> Batch:
    """Change ``image`` and ``mask`` of a batch alike.

    Args:
        batch: With ``image`` uint8 [B, H, W, C] or, normalised already, float [B, C, H, W]; a
            list of images of differing sizes works too.
        changes: Applied in order.
    """
    if not changes:
        return batch
    fields = [field for field in ("image", "mask") if field in batch]
    return {**batch, **{field: _changed(batch[field], changes) for field in fields}}


def _changed(value: Any, changes: Sequence[RowChange]) -> Any:
    if isinstance(value, list):
        return [_in_layout(one[None], changes, row)[0] for row, one in enumerate(value)]
    return _in_layout(value, changes, 0)


def _in_layout(image: torch.Tensor, changes: Sequence[RowChange], first: int) -> torch.Tensor:
    """Changes of an image with its channels last, which are put back where they were."""
    if image.is_floating_point() and image.ndim == 4:
        last = image.permute(0, 2, 3, 1)
        return _applied(last, changes, first).permute(0, 3, 1, 2)
    return _applied(image, changes, first)


def _applied(image: torch.Tensor, changes: Sequence[RowChange], first: int) -> torch.Tensor:
    """Changes of [n, H, W, ...], the rows of a batch from `first` on."""
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
    """Whether NumPy and OpenCV can work on [B, H, W, ...]: it lies in ordinary memory.

    They are faster there, and compute in the thread that calls them: torch would start threads
    of its own for each worker.
    """
    if image.device.type != "cpu" or not all(image.shape):
        return False
    return image.itemsize * math.prod(image.shape[3:]) <= _MOST_PIXEL_BYTES


def _bytes_of(image: torch.Tensor) -> NDArray[np.uint8]:
    """The bytes of the pixels of [B, H, W, ...], uint8 [B, H, W, C], in one piece.

    Every operation of torch gives up the interpreter's lock, so images that are bytes in one
    piece already take none.
    """
    import torch

    if image.dtype is torch.uint8 and image.ndim == 4 and image.is_contiguous():
        return image.numpy()
    flat = image.detach().contiguous().reshape(*image.shape[:3], -1)
    return flat.view(torch.uint8).numpy()


class RowSteps:
    """Several steps as one batch transform, which takes the pixels through all of them at once.

    Args:
        steps: Applied in order.
    """

    def __init__(self, steps: Sequence[RowStep]) -> None:
        self.steps = tuple(steps)

    def __call__(self, batch: Batch) -> Batch:
        """Apply all steps; raises what they raise."""
        return changed_rows(batch, self._changes(batch))

    def _changes(self, batch: Batch) -> list[RowChange]:
        """Ask the steps what they do to a batch's rows, without those that do nothing."""
        changes = [step.row_change(batch) for step in self.steps]
        return [change for change in changes if change is not None]


def joined_steps(transforms: Sequence[BatchTransform]) -> list[BatchTransform]:
    """Join neighbours that change rows into `RowSteps`; one that is called in its own way stays."""
    joined: list[Any] = []
    for by_row, run in groupby(transforms, lambda step: type(step).__call__ is RowStep.__call__):
        steps: list[Any] = list(run)
        joined += [RowSteps(steps)] if by_row else steps
    return joined
