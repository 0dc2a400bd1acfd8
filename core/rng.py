"""Random draws keyed by (seed, epoch, position), equal in every process and in every order.

Philox is counter-based (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC 2011).
Its state is a key and a counter, so setting them starts the stream of any position.
"""

from __future__ import annotations

import hashlib
import random
from enum import IntEnum
from functools import lru_cache
from math import isqrt
from typing import Any

import numpy as np
from numpy.typing import NDArray

Int64Array = NDArray[np.int64]

_MASK64 = (1 << 64) - 1


class Stream(IntEnum):
    """The purpose of a draw; purposes never share a stream."""

    AUGMENT = 0
    REPLACE = 1
    SAMPLER = 2
    DEVICE = 3
    GLOBAL = 4
    PARTNERS = 5
    WINDOW = 6
    MIX = 7


class KeyedRng:
    """A generator that can be set to the stream of any position; one for each thread.

    Each call of `at` invalidates the generator that the previous call returned.
    """

    __slots__ = ("_bits", "_counter", "_key", "_state", "generator")

    def __init__(self) -> None:
        self._bits = np.random.Philox(key=0)
        self.generator = np.random.Generator(self._bits)
        self._counter = np.zeros(4, np.uint64)
        self._key = np.zeros(2, np.uint64)
        self._state: Any = {
            "bit_generator": "Philox",
            "state": {"counter": self._counter, "key": self._key},
            "buffer": np.zeros(4, np.uint64),
            "buffer_pos": 4,
            "has_uint32": 0,
            "uinteger": 0,
        }

    def at(
        self,
        seed: int,
        epoch: int,
        position: int,
        stream: Stream = Stream.AUGMENT,
        attempt: int = 0,
    ) -> np.random.Generator:
        """Return the generator, set to the start of a stream; `attempt` numbers repeated draws."""
        self._key[0] = seed & _MASK64
        self._key[1] = epoch
        # The first word counts drawn blocks, so streams overlap only after 2^64 blocks.
        self._counter[1] = position
        self._counter[2] = stream
        self._counter[3] = attempt
        self._bits.state = self._state
        return self.generator


def philox_words(seed: int, epoch: int, start: int, stop: int, stream: Stream) -> np.ndarray:
    """Return four random words for each position in ``start .. stop - 1``, uint64 [n, 4]."""
    bits = np.random.Philox(
        key=np.array([seed & _MASK64, epoch], np.uint64),
        # The position is the first word, which counts blocks. The other words separate streams.
        counter=np.array([start, 0, int(stream) | 1 << 32, 0], np.uint64),
    )
    return bits.random_raw((stop - start) * 4).reshape(-1, 4)


def batch_key(seed: int, step: str) -> int:
    """Return the key of a step for `words_at`; steps of different names draw independently."""
    text = f"{seed & _MASK64} {int(Stream.DEVICE)} {step}".encode()
    return int.from_bytes(hashlib.blake2b(text, digest_size=8).digest(), "little", signed=True)


def words_at(key: int, epochs: Int64Array, positions: Int64Array) -> Int64Array:
    """Return one random word for each row of a batch, int64 [n]; `key` is from `batch_key`.

    SplitMix64 (Steele, Lea and Flood, "Fast splittable pseudorandom number generators", OOPSLA
    2014): key and epoch start a sequence, and the position is the offset in it.
    """
    starts = _mixed(key + epochs * _GOLDEN)
    return _mixed(starts + positions * _GOLDEN)


def _mixed(word: Int64Array) -> Int64Array:
    """Apply the output function of SplitMix64 (variant 13 of Stafford's), in place."""
    unsigned = word.view(np.uint64)
    for shift, factor in _MIX:
        unsigned ^= unsigned >> shift
        unsigned *= factor
    unsigned ^= unsigned >> np.uint64(31)
    return word


_GOLDEN = 0x9E3779B97F4A7C15 - (1 << 64)
_MIX = np.array([(30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)], np.uint64)


class GlobalStates:
    """Replaces the global random states by states seeded with `seed` (63 bits) in a ``with`` block.

    The next block continues where the previous one ended. All threads see the states.
    """

    def __init__(self, seed: int) -> None:
        self._seed = seed
        self._own: tuple[Any, ...] | None = None
        self._others: tuple[Any, ...] = ()

    def __enter__(self) -> None:
        import torch

        self._others = _states()
        if self._own is not None:
            _set_states(self._own)
            return
        random.seed(self._seed)
        np.random.seed([self._seed & 0xFFFFFFFF, self._seed >> 32])
        torch.default_generator.manual_seed(self._seed)

    def __exit__(self, *_: object) -> None:
        self._own = _states()
        _set_states(self._others)


def _states() -> tuple[Any, ...]:
    import torch

    return random.getstate(), np.random.get_state(), torch.get_rng_state()


def _set_states(states: tuple[Any, ...]) -> None:
    import torch

    random.setstate(states[0])
    np.random.set_state(states[1])
    torch.set_rng_state(states[2])


SMALL = 65_536
"""Up to this length `permute` sorts random keys."""

_ROUNDS = 10
"""Rounds of the Feistel network; four rounds are visibly not random."""


def permute(positions: Int64Array, *, length: int, seed: int, epoch: int) -> Int64Array:
    """Map `positions`, int64 [n], by the permutation of ``0 .. length - 1`` of an epoch."""
    if length <= SMALL:
        return _small_order(length, seed, epoch)[positions]
    return _walk(positions.astype(np.uint64), length, _round_keys(seed, epoch))


@lru_cache(maxsize=4)
def _small_order(length: int, seed: int, epoch: int) -> Int64Array:
    keys = philox_words(seed, epoch, 0, length, Stream.SAMPLER)[:, 0]
    order = np.argsort(keys, kind="stable").astype(np.int64)
    order.flags.writeable = False
    return order


@lru_cache(maxsize=4)
def _round_keys(seed: int, epoch: int) -> NDArray[np.uint64]:
    return philox_words(seed, epoch, 0, _ROUNDS, Stream.SAMPLER)[:, 0].astype(np.uint64)


def _walk(x: NDArray[np.uint64], length: int, keys: NDArray[np.uint64]) -> Int64Array:
    """Apply the network until every value is in ``0 .. length - 1`` (cycle walking)."""
    # The grid of rows x columns exceeds `length` by less than one row, so few values walk.
    # In a domain of 2^k, up to half of the values would.
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
    """Apply a Feistel network over a grid.

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
    """Mix 64-bit words with a key by the finalizer of SplitMix64 (Steele et al., OOPSLA 2014)."""
    words = (x + np.uint64(1)) * np.uint64(_GOLDEN & _MASK64) ^ key
    return _mixed(words.view(np.int64)).view(np.uint64)
