"""Draw numbers for the rows of a batch by position, on their device."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

from penstock.core.rng import words_at
from penstock.core.sample import Batch

if TYPE_CHECKING:
    import torch

_BITS = 23


def row_words(batch: Batch, key: int) -> Any:
    """Return a random word for each row, int64 [B]; on the CPU a NumPy array, which is faster.

    Raises:
        ValueError: The batch lacks ``epoch`` or ``position``.
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
            epochs = epochs[:1]  # equal in all rows: half of the work
        return words_at(key, epochs, positions.numpy())
    return words_at(key, epochs, positions)


def uniforms(batch: Batch, key: int, count: int) -> Any:
    """Draw `count` independent numbers between 0 and 1 for each row, float32 [count, B].

    The row's word (see `core.rng.words_at`) starts a sequence of SplitMix64. Each word of the
    sequence gives two numbers of 23 bits, (k + 1/2) / 2^23. float32 represents them exactly on
    every device, and they are never 0 or 1.

    The result is a tensor on the device of the batch. On the CPU it is a NumPy array, whose
    functions return the same bits for an element at any place of an array.
    """
    starts, numbers = row_words(batch, key), (count + 1) // 2
    if isinstance(starts, np.ndarray):
        words = words_at(0, starts, np.arange(numbers)[:, None])
        parts: Any = np.concatenate([words >> 41, words >> 9])[:count] & (1 << _BITS) - 1
        return (parts.astype(np.float32) + 0.5) * 2.0**-_BITS
    import torch

    words = words_at(0, starts, torch.arange(numbers, device=starts.device)[:, None])
    parts = torch.cat([words >> 41, words >> 9])[:count] & (1 << _BITS) - 1
    return (parts.float() + 0.5) * 2.0**-_BITS


def row_by_row(image: torch.Tensor) -> bool:
    """Return whether to change a batch's rows one by one: on the CPU.

    The cache then holds a row through all arithmetic, unchanged rows cost nothing, and no row can
    depend on its neighbours.
    """
    return image.device.type == "cpu"


def symmetric_beta(first: Any, second: Any, alpha: float) -> Any:
    """Draw from Beta(alpha, alpha), float64 [n], each from two uniforms, without rejection.

    Bailey's polar method ("Polar generation of random variates with the t-distribution",
    Mathematics of Computation 62, 1994) gives a variate t of Student's distribution with 2 alpha
    degrees of freedom. t / sqrt(2 alpha + t^2) is a symmetric beta variate on -1 .. 1 (Devroye,
    "Random variate generation in one line of code", WSC 1996). `alpha` is 0.05 .. 1000.
    """
    if isinstance(first, np.ndarray):
        first, cosine = first.astype(np.float64), np.cos(2 * math.pi * second.astype(np.float64))
    else:
        first, cosine = first.double(), (2 * math.pi * second.double()).cos()
    square = (first ** (-1 / alpha) - 1) * cosine * cosine
    return 0.5 + ((cosine > 0) * 1.0 - 0.5) * (1 / (1 + 1 / square)) ** 0.5
