"""Colours of a batch's rows: planes of numbers from 0 to 1, whatever the batch's layout."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from datasets.sample import Batch
from transforms.row_draws import row_by_row

if TYPE_CHECKING:
    import torch

LUMA = (0.299, 0.587, 0.114)
"""Weights of red, green and blue (ITU-R BT.601)."""

Change = Callable[["torch.Tensor", slice], "torch.Tensor"]


def changed_colours(batch: Batch, change: Change, chosen: Any, step: str) -> Batch:
    """A batch with new colours in ``image``, of the same layout and type.

    In ordinary memory one row follows the other; on a device all are taken at once.

    Args:
        batch: With ``image`` uint8 [B, H, W, 3] or float [B, 3, H, W] from 0 to 1, or a list
            of these without B.
        change: Takes float [n, 3, H, W], which it may write to, from 0 to 1, and which rows of
            the batch these are; gives the like. Bytes are rounded to the nearest.
        chosen: Rows to be changed, bool [B]; the others stay, bit for bit.
        step: The name of the step, for the message.

    Raises:
        ValueError: The images have no three channels.
    """
    import torch

    image, chosen = batch["image"], torch.as_tensor(chosen)
    rows = range(len(image))
    if isinstance(image, list):
        flags = chosen.tolist()
        changed = [
            _changed(image[i][None], change, i, step)[0] if flags[i] else image[i] for i in rows
        ]
        return {**batch, "image": changed}
    _check_channels(image, step)
    if not row_by_row(image):
        shape = (-1, 1, 1, 1)
        return {
            **batch,
            "image": _changed(image, change, 0, step).where(chosen.reshape(shape), image),
        }
    result = image.clone()
    for row in chosen.nonzero()[:, 0].tolist():
        result[row] = _changed(image[row : row + 1], change, row, step)[0]
    return {**batch, "image": result}


def luma(pixels: torch.Tensor) -> torch.Tensor:
    """Brightness of [n, 3, H, W], [n, 1, H, W]."""
    red, green, blue = pixels.unbind(1)
    return (red * LUMA[0] + green * LUMA[1] + blue * LUMA[2])[:, None]


def per_row(draws: Any, like: torch.Tensor) -> torch.Tensor:
    """Numbers of rows, [n], as [n, 1, 1, 1] beside pixels."""
    import torch

    return torch.as_tensor(draws, device=like.device).to(like.dtype)[:, None, None, None]


def _changed(image: torch.Tensor, change: Change, first: int, step: str) -> torch.Tensor:
    import torch

    _check_channels(image, step)
    rows = slice(first, first + len(image))
    if image.is_floating_point():
        return change(image.clone(memory_format=torch.contiguous_format), rows)
    planes = image.permute(0, 3, 1, 2).to(torch.float32, memory_format=torch.contiguous_format)
    changed = change(planes.mul_(1 / 255), rows).mul_(255).round_().clamp_(0, 255)
    return changed.permute(0, 2, 3, 1).to(torch.uint8, memory_format=torch.contiguous_format)


def _check_channels(image: torch.Tensor, step: str) -> None:
    channels = image.shape[1 if image.is_floating_point() else -1] if image.ndim == 4 else 0
    if channels != 3:
        raise ValueError(
            f"augment.device.{step}: images are {list(image.shape[1:])}, expected 3 channels, "
            f"uint8 [H, W, 3] or float [3, H, W] from 0 to 1; leave the step out"
        )
