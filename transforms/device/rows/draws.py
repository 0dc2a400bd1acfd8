"""Draw numbers for the rows of a batch by position, where the batch is."""

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
    """Compute a random word for each row, int64 [B], where the batch is.

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


def uniforms(batch: Batch, key: int, count: int) -> Any:
    """Draw numbers between 0 and 1 for each row, independent of one another.

    The row's word (see `core.rng.words_at`) starts a sequence of SplitMix64, of whose
    words each gives two numbers of 23 bits: (k + 1/2) / 2^23, which float32 holds exactly on
    every device, and which is never 0 or 1.

    Args:
        batch: With ``epoch`` and ``position``, int64 [B].
        key: What `core.rng.batch_key` gave for the step.
        count: How many numbers.

    Returns:
        float32 [count, B] on the device of the batch; in ordinary memory a NumPy array, whose
        functions give an element the same bits wherever in an array it stands.

    Raises:
        ValueError: The batch lacks the fields that the draws follow from.
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
    """Whether a batch's rows are best changed one after the other: it lies in ordinary memory.

    The core's own cache then holds a row through all of the arithmetic, what need not be
    computed is not, and nothing can depend on a row's neighbours.
    """
    return image.device.type == "cpu"


def symmetric_beta(first: Any, second: Any, alpha: float) -> Any:
    """Draw from Beta(alpha, alpha), each from two uniforms, without rejection.

    A variate of Student's t by Bailey's polar method ("Polar generation of random variates with
    the t-distribution", Mathematics of Computation 62, 1994) with 2 alpha degrees of freedom,
    which t / sqrt(2 alpha + t^2) turns into a symmetric beta variate on -1 .. 1 (Devroye,
    "Random variate generation in one line of code", WSC 1996).

    Args:
        first: Uniforms of `uniforms`, float32 [n].
        second: Others, float32 [n].
        alpha: 0.05 .. 1000.

    Returns:
        float64 [n] of the same kind, 0 .. 1.
    """
    if isinstance(first, np.ndarray):
        first, cosine = first.astype(np.float64), np.cos(2 * math.pi * second.astype(np.float64))
    else:
        first, cosine = first.double(), (2 * math.pi * second.double()).cos()
    square = (first ** (-1 / alpha) - 1) * cosine * cosine
    return 0.5 + ((cosine > 0) * 1.0 - 0.5) * (1 / (1 + 1 / square)) ** 0.5
