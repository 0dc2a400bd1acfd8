"""Keyed permutations: the record at any position of a shuffled epoch, in constant memory."""

from __future__ import annotations

from functools import lru_cache
from math import isqrt

import numpy as np
from numpy.typing import NDArray

from penstock.core.rng import Stream, philox_words

SMALL = 65_536
"""Up to this many positions the permutation is an argsort of random keys."""

_ROUNDS = 10
"""Rounds of the Feistel network; four of them are visibly not random."""


def permute(
    positions: NDArray[np.int64], *, length: int, seed: int, epoch: int
) -> NDArray[np.int64]:
    """Images of `positions` under the permutation of ``0 .. length - 1`` keyed by seed and epoch.

    Args:
        positions: int64 [n], each in ``0 .. length - 1``.
        length: Size of the permuted set, up to 2^62.
        seed: The run's seed.
        epoch: The epoch; every epoch has a permutation of its own.

    Returns:
        int64 [n].
    """
    if length <= SMALL:
        return _small_order(length, seed, epoch)[positions]
    return _walk(positions.astype(np.uint64), length, _round_keys(seed, epoch))


@lru_cache(maxsize=4)
def _small_order(length: int, seed: int, epoch: int) -> NDArray[np.int64]:
    keys = philox_words(seed, epoch, 0, length, Stream.SAMPLER)[:, 0]
    order = np.argsort(keys, kind="stable").astype(np.int64)
    order.flags.writeable = False
    return order


@lru_cache(maxsize=4)
def _round_keys(seed: int, epoch: int) -> NDArray[np.uint64]:
    return philox_words(seed, epoch, 0, _ROUNDS, Stream.SAMPLER)[:, 0].astype(np.uint64)


def _walk(x: NDArray[np.uint64], length: int, keys: NDArray[np.uint64]) -> NDArray[np.int64]:
    """Apply the network until every value lies in ``0 .. length - 1`` (cycle walking)."""
    # A grid of rows x columns holds `length` cells and fewer than one row more, so hardly a
    # value has to walk; a domain of 2^k would send up to half of them round again.
    rows = isqrt(length - 1) + 1
    columns = -(-length // rows)
    x = _feistel(x, rows, columns, keys)
    outside = np.flatnonzero(x >= length)
    while outside.size:
        x[outside] = _feistel(x[outside], rows, columns, keys)
        outside = outside[x[outside] >= length]
    return x.astype(np.int64)


def _feistel(
    x: NDArray[np.uint64], rows: int, columns: int, keys: NDArray[np.uint64]
) -> NDArray[np.uint64]:
    """Generalised Feistel network over a grid.

    Black and Rogaway, "Ciphers with arbitrary finite domains", CT-RSA 2002, section 5.
    """
    row, column = np.divmod(x, np.uint64(columns))
    for number, key in enumerate(keys):
        if number % 2:
            column = (column + _mix(row, key) % np.uint64(columns)) % np.uint64(columns)
        else:
            row = (row + _mix(column, key) % np.uint64(rows)) % np.uint64(rows)
    return row * np.uint64(columns) + column


def _mix(x: NDArray[np.uint64], key: np.uint64) -> NDArray[np.uint64]:
    """Keyed 64-bit mixing: the finalizer of SplitMix64 (Steele et al., OOPSLA 2014)."""
    x = (x + np.uint64(1)) * np.uint64(0x9E3779B97F4A7C15) ^ key
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))
