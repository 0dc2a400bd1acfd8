"""Ragged arrays in one tensor: what collates that pad share."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from pipeline.columns import empty, to_array

if TYPE_CHECKING:
    import numpy as np
    import torch
    from numpy.typing import NDArray

MASK = "_mask"
LENGTHS = "_lengths"


def padded(
    name: str,
    field: str,
    values: Sequence[Any],
    keys: Sequence[str],
    *,
    axes: int,
    size_of: Callable[[int], int],
    fill: float,
    remedy: str,
) -> dict[str, torch.Tensor]:
    """Arrays filled up to a common length, their lengths, and where there is data.

    Args:
        name: The collate, for messages.
        field: What the arrays are called.
        values: Arrays or tensors of one type.
        keys: Keys of the samples, for messages.
        axes: How many leading axes may differ.
        size_of: The length to fill up to, by that of the longest.
        fill: What is filled in.
        remedy: What to do about other axes that differ, for messages.

    Returns:
        ``field`` [B, length, ...], ``field_lengths`` int64 [B] (or [B, axes]), and
        ``field_mask``, bool, True where there is data.

    Raises:
        ValueError: Other axes differ, or the types do.
    """
    import torch

    arrays = [to_array(value) for value in values]
    first = arrays[0]
    for array, key in zip(arrays, keys, strict=True):
        if array.ndim != first.ndim or array.shape[axes:] != first.shape[axes:]:
            raise ValueError(
                f"{name}: {field!r} is {list(first.shape)} in sample {keys[0]!r} and "
                f"{list(array.shape)} in {key!r}; only the first {axes} axes may differ, {remedy}"
            )
        if array.dtype != first.dtype:
            raise ValueError(
                f"{name}: {field!r} is {first.dtype} in sample {keys[0]!r} and "
                f"{array.dtype} in {key!r}; let the storage or a transform give one type"
            )
    lengths = torch.tensor([array.shape[:axes] for array in arrays], dtype=torch.int64)
    sizes = tuple(size_of(int(longest)) for longest in lengths.amax(0))
    filled = empty((len(arrays), *sizes, *first.shape[axes:]), first.dtype)
    filled.fill_(fill)
    mask = torch.zeros((len(arrays), *sizes), dtype=torch.bool)
    _copy_rows(filled.numpy(), mask.numpy(), arrays, axes)
    return {
        field: filled,
        f"{field}{LENGTHS}": lengths[:, 0].clone() if axes == 1 else lengths,
        f"{field}{MASK}": mask,
    }


def _copy_rows(
    rows: NDArray[Any], marks: NDArray[np.bool_], arrays: Sequence[Any], axes: int
) -> None:
    for row, mark, array in zip(rows, marks, arrays, strict=True):
        there = tuple(slice(0, length) for length in array.shape[:axes])
        row[there] = array
        mark[there] = True


def count_padding(batch: dict[str, Any]) -> tuple[int, int]:
    """How much of a batch is padding, in the dicts inside of it too.

    Returns:
        Positions of padded fields that hold data, and all of them.
    """
    real = total = 0
    for name, value in batch.items():
        if isinstance(value, dict):
            inner_real, inner_total = count_padding(value)
            real, total = real + inner_real, total + inner_total
            continue
        field = name.removesuffix(MASK)
        if name != field and f"{field}{LENGTHS}" in batch:
            lengths = batch[f"{field}{LENGTHS}"]
            real += int((lengths.prod(1) if lengths.ndim > 1 else lengths).sum())
            total += value.numel()
    return real, total
