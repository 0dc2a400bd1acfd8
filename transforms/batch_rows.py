"""What transforms that draw for the rows of a batch share: their draws, and the layouts."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from datasets.sample import Batch
from pipeline.rng import words_at

if TYPE_CHECKING:
    import torch

_FIXED = ("boxes", "keypoints")
_MOST_CHANNELS = 4  # what OpenCV takes


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
        return words_at(key, epochs.numpy(), positions.numpy())
    return words_at(key, epochs, positions)


def changed_rows(
    batch: Batch, change: Callable[[torch.Tensor, slice], torch.Tensor], step: str
) -> Batch:
    """A batch whose ``image`` and ``mask`` are changed alike.

    Args:
        batch: With ``image`` uint8 [B, H, W, C] or, normalised already, float [B, C, H, W]; a
            list of images of differing sizes works too.
        change: Takes [n, H, W, ...] and which rows of the batch these are.
        step: The name of the step, for the message.

    Raises:
        ValueError: The batch holds boxes or keypoints, which would have to move too.
    """
    for field in _FIXED:
        if field in batch:
            raise ValueError(
                f"augment.device.{step}: the batch has {field}, which it would leave where they "
                f"are; take it out, and crop or flip per sample in augment.train, or drop them "
                f"with dataset.keys={{{field}: null}}"
            )
    fields = [field for field in ("image", "mask") if field in batch]
    return {**batch, **{field: _changed(batch[field], change) for field in fields}}


def on_cpu(image: torch.Tensor) -> bool:
    """Whether NumPy and OpenCV can work on rows: uint8 [B, H, W, C] in ordinary memory."""
    import torch

    plain = image.device.type == "cpu" and image.dtype == torch.uint8 and image.is_contiguous()
    return plain and image.ndim == 4 and 1 <= image.shape[3] <= _MOST_CHANNELS


def _changed(value: Any, change: Callable[[torch.Tensor, slice], torch.Tensor]) -> Any:
    if isinstance(value, list):
        return [
            _in_layout(one[None], change, slice(row, row + 1))[0] for row, one in enumerate(value)
        ]
    return _in_layout(value, change, slice(None))


def _in_layout(
    image: torch.Tensor, change: Callable[[torch.Tensor, slice], torch.Tensor], rows: slice
) -> torch.Tensor:
    """`change` of an image with its channels last, which are put back where they were."""
    if image.is_floating_point() and image.ndim == 4:
        return change(image.permute(0, 2, 3, 1), rows).permute(0, 3, 1, 2)
    return change(image, rows)
