"""Draw numbers and windows for the rows of a batch by position, on the host."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from penstock.core.rng import words_at
from penstock.core.sample import Batch

Floats = NDArray[np.float32]
Integers = NDArray[np.int64]

_BITS = 23


def row_words(fields: Batch, key: int) -> Integers:
    """Return a random word for each row, int64 [B].

    Args:
        fields: ``epoch`` and ``position`` int64 [B].
        key: The step's `core.rng.batch_key`.

    Raises:
        ValueError: A field is missing.
    """
    for field in ("epoch", "position"):
        if field not in fields:
            raise ValueError(
                f"batch transform: the batch lacks the field {field!r}, which draws depend on; "
                f"fields: {', '.join(fields)}"
            )
    epochs, positions = np.asarray(fields["epoch"]), np.asarray(fields["position"])
    if (epochs == epochs[:1]).all():
        epochs = epochs[:1]  # equal in all rows: half of the work
    words: Integers = words_at(key, epochs, positions)
    return words


def uniforms(fields: Batch, key: int, count: int) -> Floats:
    """Draw `count` independent numbers between 0 and 1 for each row, float32 [count, B].

    The row's word (see `core.rng.words_at`) starts a sequence of SplitMix64. Each word of the
    sequence gives two numbers of 23 bits, (k + 1/2) / 2^23. float32 represents them exactly, and
    they are never 0 or 1.
    """
    starts, numbers = row_words(fields, key), (count + 1) // 2
    words = words_at(0, starts, np.arange(numbers)[:, None])
    parts = np.concatenate([words >> 41, words >> 9])[:count] & (1 << _BITS) - 1
    return (parts.astype(np.float32) + np.float32(0.5)) * np.float32(2.0**-_BITS)


def symmetric_beta(first: Floats, second: Floats, alpha: float) -> NDArray[np.float64]:
    """Draw from Beta(alpha, alpha), float64 [n], each from two uniforms, without rejection.

    Bailey's polar method ("Polar generation of random variates with the t-distribution",
    Mathematics of Computation 62, 1994) gives a variate t of Student's distribution with 2 alpha
    degrees of freedom. t / sqrt(2 alpha + t^2) is a symmetric beta variate on -1 .. 1 (Devroye,
    "Random variate generation in one line of code", WSC 1996). `alpha` is 0.05 .. 1000.
    """
    cosine = np.cos(2 * math.pi * second.astype(np.float64))
    with np.errstate(divide="ignore"):
        square = (first.astype(np.float64) ** (-1 / alpha) - 1) * cosine * cosine
        beta: NDArray[np.float64] = 0.5 + ((cosine > 0) - 0.5) * (1 / (1 + 1 / square)) ** 0.5
    return beta


TRIES = 10
WINDOW_DRAWS = 2 * TRIES + 2


def drawn_windows(
    draws: Floats,
    size: tuple[int, int],
    *,
    scale: tuple[float, float],
    ratio: tuple[float, float],
) -> tuple[Integers, NDArray[np.bool_]]:
    """Draw for each row the first of `TRIES` windows that fits into the image, at a random place.

    Source: Szegedy et al., "Going deeper with convolutions", CVPR 2015, section 6. As in
    torchvision, the area and the logarithm of the ratio are uniform.

    Args:
        draws: Uniforms, float32 [WINDOW_DRAWS, n].
        size: Height and width of the image.
        scale: Least and largest share of the image's area.
        ratio: Least and largest width / height.

    Returns:
        Top, left, height and width, int64 [n, 4]; and whether a try fitted, bool [n], without
        which height and width are 0.
    """
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
    windows = np.stack([top, left, height, width], 1).astype(np.int64)
    return windows, windows[:, 2] > 0


def checked_range(value: Any, name: str, *, least: float, most: float) -> tuple[float, float]:
    """Return two numbers as a range; raise ValueError if unordered or out of bounds."""
    if len(value) != 2 or not least <= value[0] <= value[1] <= most:
        raise ValueError(
            f"{name} is {list(value)}, expected [least, largest] within {least:g} .. {most:g}"
        )
    return float(value[0]), float(value[1])


def checked_size(value: int | list[int], step: str) -> tuple[int, int]:
    """Return height and width; raise ValueError for other than one side or two, from 1 on."""
    sides = [value, value] if isinstance(value, int) else list(value)
    if len(sides) != 2 or min(sides) < 1:
        raise ValueError(
            f"augment.device.{step}.size is {value}, expected one side or [height, width], in "
            f"pixels from 1 on"
        )
    return sides[0], sides[1]
