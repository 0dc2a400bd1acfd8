"""Draw numbers and windows for the rows of a batch by position, on the host."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from penstock.core.rng import words_at
from penstock.core.sample import Batch

if TYPE_CHECKING:
    import torch

Floats = NDArray[np.float32]
Integers = NDArray[np.int64]

_BITS = 23


def row_words(fields: Batch, key: int) -> Integers:
    """Return a random word for each row, int64 [B], for a step's `core.rng.batch_key`."""
    if missing := [name for name in ("epoch", "position") if name not in fields]:
        raise ValueError(
            f"to draw, the batch lacks the field {missing[0]!r}; fields: {', '.join(fields)}"
        )
    epochs, positions = np.asarray(fields["epoch"]), np.asarray(fields["position"])
    words: Integers = words_at(key, epochs, positions)
    return words


def uniforms(fields: Batch, key: int, count: int) -> Floats:
    """Draw `count` independent numbers between 0 and 1 for each row, float32 [count, B]."""
    # The row's word starts a sequence of SplitMix64. Each word of the sequence gives two numbers of
    # 23 bits, (k + 1/2) / 2^23. float32 represents them exactly, and they are never 0 or 1.
    starts, numbers = row_words(fields, key), (count + 1) // 2
    words = words_at(0, starts, np.arange(numbers)[:, None])
    parts = np.concatenate([words >> 41, words >> 9])[:count] & (1 << _BITS) - 1
    return (parts.astype(np.float32) + np.float32(0.5)) * np.float32(2.0**-_BITS)


def symmetric_beta(first: Floats, second: Floats, alpha: float) -> NDArray[np.float64]:
    """Draw from Beta(alpha, alpha), float64 [n], each from two uniforms; alpha is 0.05 .. 1000."""
    # Bailey's polar method ("Polar generation of random variates with the t-distribution",
    # Mathematics of Computation 62, 1994) gives a variate t of Student's distribution with 2 alpha
    # degrees of freedom. t / sqrt(2 alpha + t^2) is a symmetric beta variate on -1 .. 1 (Devroye,
    # "Random variate generation in one line of code", WSC 1996).
    cosine = np.cos(2 * math.pi * second.astype(np.float64))
    with np.errstate(divide="ignore"):
        square = (first.astype(np.float64) ** (-1 / alpha) - 1) * cosine * cosine
        beta: NDArray[np.float64] = 0.5 + ((cosine > 0) - 0.5) * (1 / (1 + 1 / square)) ** 0.5
    return beta


TRIES = 10
WINDOW_DRAWS = 2 * TRIES + 2


def drawn_windows(
    draws: Floats, size: tuple[int, int], *, scale: tuple[float, float], ratio: tuple[float, float]
) -> Integers:
    """Return the first of `TRIES` windows that fits into the image: top, left, height and width.

    `draws` are uniforms, [WINDOW_DRAWS, n]. The result is int64 [n, 4]; sides of 0 if none fits.
    """
    # Szegedy et al., "Going deeper with convolutions", CVPR 2015, section 6. As in torchvision, the
    # area and the logarithm of the ratio are uniform.
    shares, ratios = draws[:TRIES], draws[TRIES : 2 * TRIES]
    area = (scale[0] + shares * (scale[1] - scale[0])) * (size[0] * size[1])
    shape = ratio[0] * (ratio[1] / ratio[0]) ** ratios
    widths, heights = ((area * shape) ** 0.5).round(), ((area / shape) ** 0.5).round()
    fits = (widths <= size[1]) & (heights <= size[0]) & (widths > 0) & (heights > 0)
    first = fits & (fits.cumsum(0) == 1)
    width, height = (widths * first).sum(0), (heights * first).sum(0)
    # Whole numbers below 2^24 times draws below 1 stay below the limit after rounding.
    top = draws[-2] * (size[0] - height + 1) // 1
    left = draws[-1] * (size[1] - width + 1) // 1
    return np.stack([top, left, height, width], 1).astype(np.int64)


def inside(windows: torch.Tensor, height: int, width: int) -> torch.Tensor:
    """Return which pixels are in windows, int64 [n, 4], as bool [n, height, width]."""
    import torch

    top, left, rows, columns = windows[:, :, None].unbind(1)
    y, x = (torch.arange(size, device=windows.device) for size in (height, width))
    within_rows, within_columns = (y >= top) & (y < top + rows), (x >= left) & (x < left + columns)
    return within_rows[:, :, None] & within_columns[:, None]
