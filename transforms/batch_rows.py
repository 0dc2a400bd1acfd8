"""What transforms that move the pixels of a batch's rows share: draws, layouts, and the pace."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from datasets.sample import Batch
from pipeline.rng import words_at

if TYPE_CHECKING:
    import numpy as np
    import torch
    from numpy.typing import NDArray

    from transforms.gathered_rows import Mirror, Shift

Allocate = Callable[[int], Any] | None
"""Gives writable memory of so many bytes; None: ordinary memory is taken."""

_FIXED = ("boxes", "keypoints")
_MOST_PIXEL_BYTES = 512  # channels of bytes that OpenCV takes
_PIECE_BYTES = 2 << 20


@dataclass(frozen=True, slots=True)
class RowChange:
    """What a step does to the rows of a batch, the same in NumPy and in torch.

    Both functions take some rows and which of the batch these are.

    Attributes:
        pixels: Takes uint8 [n, H, W, C] in ordinary memory, and gives the like.
        tensors: Takes [n, H, W, ...] of any type on any device, and gives the like.
        in_place: Whether `pixels` changes what it is given, which is then in one piece and no
            memory of the batch's own, and gives that.
    """

    pixels: Callable[[NDArray[np.uint8], slice], NDArray[np.uint8]]
    tensors: Callable[[torch.Tensor, slice], torch.Tensor]
    in_place: bool = False


class RowStep(Protocol):
    """A batch transform that changes ``image`` and ``mask`` row by row, and nothing else."""

    def row_change(self, batch: Batch) -> RowChange | None:
        """What it does to the rows of this batch; None: nothing."""

    def as_gathered(self, height: int, width: int) -> Shift | Mirror | None:
        """The same to images of this size, to be done while these are gathered; None: it cannot."""


def row_words(batch: Batch, key: int) -> Any:
    """A random word for each row, int64 [B], where the batch is.

    Returns:
        A tensor on the device of the batch; in ordinary memory a NumPy array, of which each
        operation costs a third.

    Raises:
        ValueError: The batch lacks the fields that the draws follow from.
    """
    for field in ("epoch", "position"):
        if field not in batch:
            raise ValueError(
                f"batch transform: the batch has no field {field!r}, from which its draws follow; "
                f"fields: {', '.join(batch)}"
            )
    epochs, positions = batch["epoch"], batch["position"]
    if positions.device.type == "cpu":
        epochs = epochs.numpy()
        if (epochs == epochs[:1]).all():
            epochs = epochs[:1]  # one for all rows: half of the work
        return words_at(key, epochs, positions.numpy())
    return words_at(key, epochs, positions)


def refuse_fixed_fields(batch: Batch, step: str) -> None:
    """Refuse a batch with fields that moved pixels would leave where they are.

    Raises:
        ValueError: The batch holds boxes or keypoints.
    """
    for field in _FIXED:
        if field in batch:
            raise ValueError(
                f"augment.device.{step}: the batch has {field}, which it would leave where they "
                f"are; take it out, and crop or flip per sample in augment.train, or drop them "
                f"with dataset.keys={{{field}: null}}"
            )


def changed_rows(
    batch: Batch,
    changes: Sequence[RowChange],
    *,
    allocate: Allocate = None,
) -> Batch:
    """A batch whose ``image`` and ``mask`` are changed alike.

    Args:
        batch: With ``image`` uint8 [B, H, W, C] or, normalised already, float [B, C, H, W]; a
            list of images of differing sizes works too.
        changes: Applied in order.
        allocate: Gives memory in the host for images that take more than a piece, or None.
    """
    if not changes:
        return batch
    fields = [field for field in ("image", "mask") if field in batch]
    return {**batch, **{field: _changed(batch[field], changes, allocate) for field in fields}}


def _changed(value: Any, changes: Sequence[RowChange], allocate: Allocate) -> Any:
    if isinstance(value, list):
        return [_in_layout(one[None], changes, row, None)[0] for row, one in enumerate(value)]
    return _in_layout(value, changes, 0, allocate)


def _in_layout(
    image: torch.Tensor, changes: Sequence[RowChange], first: int, allocate: Allocate
) -> torch.Tensor:
    """Changes of an image with its channels last, which are put back where they were."""
    if image.is_floating_point() and image.ndim == 4:
        last = image.permute(0, 2, 3, 1)
        return _applied(last, changes, first, allocate).permute(0, 3, 1, 2)
    return _applied(image, changes, first, allocate)


def _applied(
    image: torch.Tensor, changes: Sequence[RowChange], first: int, allocate: Allocate
) -> torch.Tensor:
    """Changes of [n, H, W, ...], the rows of a batch from `first` on."""
    if on_cpu(image):
        return _applied_on_cpu(image, changes, first, allocate)
    for change in changes:
        image = change.tensors(image, slice(first, first + len(image)))
    return image


def on_cpu(image: torch.Tensor) -> bool:
    """Whether NumPy and OpenCV can work on [B, H, W, ...]: it lies in ordinary memory.

    They are faster there, and compute in the thread that calls them: torch would start threads
    of its own for each worker.
    """
    if image.device.type != "cpu" or not all(image.shape):
        return False
    return image.itemsize * math.prod(image.shape[3:]) <= _MOST_PIXEL_BYTES


def _applied_on_cpu(
    image: torch.Tensor, changes: Sequence[RowChange], first: int, allocate: Allocate
) -> torch.Tensor:
    """The same on the bytes of the pixels, a piece after the other through all the changes.

    What a change wrote is then still near the core when the next one reads it. Smaller pieces
    are nearer, and lose more than that by their calls, each of which gives up the interpreter's
    lock and waits for the loader's threads: 512 images of 32 x 32 are one piece.
    """
    import numpy as np
    import torch

    pixels = _bytes_of(image)
    result: NDArray[np.uint8] | None = None
    for rows in _pieces(pixels):
        piece = pixels[rows]
        for change in changes:
            if change.in_place and (
                np.may_share_memory(piece, pixels) or not piece.flags.c_contiguous
            ):
                piece = piece.copy()
            piece = change.pixels(piece, slice(first + rows.start, first + rows.stop))
        if len(piece) == len(pixels):
            result = piece
            break
        if result is None:
            shape = (len(pixels), *piece.shape[1:])
            count = math.prod(shape)
            memory = np.empty(count, np.uint8) if allocate is None else allocate(count)
            result = np.frombuffer(memory, np.uint8, count).reshape(shape)
        result[rows] = piece
    assert result is not None, "on_cpu takes no batch without pixels"
    moved = torch.from_numpy(result)
    if image.dtype is torch.uint8 and image.ndim == 4:
        return moved
    return moved.view(image.dtype).reshape(*result.shape[:3], *image.shape[3:])


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


def _pieces(pixels: NDArray[np.uint8]) -> Iterator[slice]:
    """Cuts [B, ...] along its first axis."""
    count = max(1, _PIECE_BYTES // pixels[:1].nbytes)
    starts = range(0, len(pixels), count)
    return (slice(start, min(start + count, len(pixels))) for start in starts)
