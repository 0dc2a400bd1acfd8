"""Mix several data sets, each with its exact share of the positions."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterator, Sequence
from fractions import Fraction
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from penstock.core.contracts import DirectSampler, Sampler
from penstock.core.registry import register
from penstock.core.rng import Stream, philox_words

BLOCK = 1_024
"""Positions in a block, which has each source's exact share."""


class MixedSource(NamedTuple):
    """A source of a mix; `sampler` orders its own records, None for a source without draws."""

    name: str
    size: int
    weight: float
    sampler: Sampler | None


class Mixture(NamedTuple):
    """The sources of a mix, and the positions in an epoch; None: as many as the samplers have."""

    sources: tuple[MixedSource, ...]
    length: int | None = None


@register("sampler", "mix")
class MixSampler(DirectSampler):
    """Draw from several data sets by their weights; only for ``dataset=mix``.

    Each block of 1,024 positions has every source's exact share, rounded over all epochs, in random
    order. The draws of a source follow its own sampler from the start of training: an epoch of the
    mix resumes each source where the last epoch stopped, and a source restarts only when it is
    exhausted. Computes any position directly.

    Attributes:
        samplers: The samplers of the drawn sources, by name.
    """

    def __init__(self, n: int, seed: int = 0, *, mixed: Mixture) -> None:
        self._sources, self._drawn = mixed.sources, dict(_drawn(mixed))
        self._firsts = np.cumsum([0, *(source.size for source in mixed.sources)])
        assert self._firsts[-1] == n, "a mix has the records of its sources"
        drawn = self._drawn.values()
        self.samplers = {self._sources[number].name: each for number, each in self._drawn.items()}
        self.same = ("source", *sorted({name for sampler in drawn for name in sampler.same}))
        weights = whole_weights([source.weight for source in mixed.sources])
        self._draws = _Draws(seed, weights, mixed.length or sum(map(len, drawn)))

    def __len__(self) -> int:
        return self._draws.length

    def fingerprint(self) -> str:
        """Return a hash of the samplers' external inputs, such as weights in a file."""
        prints = [(name, sampler.fingerprint()) for name, sampler in self.samplers.items()]
        return hashlib.blake2b(repr(prints).encode(), digest_size=12).hexdigest()

    def uses(self) -> NDArray[np.float64]:
        shares = [np.zeros(source.size) for source in self._sources]
        for number, sampler in self._drawn.items():
            own = sampler.uses()
            own = np.ones(self._sources[number].size) if own is None else own
            shares[number] = self._sources[number].weight * own / max(own.sum(), 1e-300)
        return np.concatenate(shares)

    def at(self, epoch: int, positions: NDArray[np.int64]) -> NDArray[np.int64]:
        sources, draws, records = (np.empty(len(positions), np.int64) for _ in range(3))
        for rows, places, (_, block_sources, block_draws) in self._draws.blocks(epoch, positions):
            sources[rows], draws[rows] = block_sources[places], block_draws[places]
        for number in np.unique(sources).tolist():
            rows = np.flatnonzero(sources == number)
            records[rows] = self._firsts[number] + self._records_of(number, draws[rows])
        return records

    def of_source(self, number: int, epoch: int, positions: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the next record of a source from each position on, numbered there, int64 [n]."""
        draws = np.empty(len(positions), np.int64)
        for rows, places, (before, sources, _) in self._draws.blocks(epoch, positions):
            own = np.flatnonzero(sources == number)
            draws[rows] = before[number] + np.searchsorted(own, places)
        return self._records_of(number, draws)

    def _records_of(self, number: int, draws: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the records of a source's draws, int64 [n], numbered in that source."""
        sampler = self._drawn[number]
        epochs, positions = np.divmod(draws, len(sampler))
        records = np.empty_like(draws)
        for epoch in np.unique(epochs).tolist():
            rows = np.flatnonzero(epochs == epoch)
            records[rows] = sampler.at(epoch, positions[rows])
        return records


def _drawn(mixed: Mixture) -> Iterator[tuple[int, Sampler]]:
    """Yield the number and sampler of each drawn source; refuse sources that cannot be mixed."""
    for number, source in enumerate(mixed.sources):
        key, sampler = f"dataset.sources.{source.name}", source.sampler
        if not source.weight:
            continue
        if sampler is None or not len(sampler):
            records = f"{source.name!r}, which has {source.size} records to train on"
            remedy = f"check its data and val_fraction, or set {key}.weight=0"
            raise ValueError(f"sampler mix: nothing can be drawn of {records}; {remedy}")
        if sampler.group > 1 or sampler.cuts(0) is not None:
            text = f"sampler mix: the sampler of {source.name!r} keeps positions together"
            raise ValueError(f"{text}, which a mix separates; set {key}.sampler=random")
        yield number, sampler


def whole_weights(weights: Sequence[float]) -> tuple[int, ...]:
    """Convert weights (finite, not negative, not all zero) to integers in the same proportions."""
    fractions = [Fraction(weight) for weight in weights]
    scale = math.lcm(*(fraction.denominator for fraction in fractions))
    numbers = [int(fraction * scale) for fraction in fractions]
    common = math.gcd(*numbers)
    return tuple(number // common for number in numbers)


def counts_at(total: int, weights: Sequence[int]) -> list[int]:
    """Divide the first `total` draws among the sources, by cumulative rounding.

    Splits the sources in half recursively and rounds the share of each first half. The counts add
    up to `total`, never fall as `total` grows, and are within ceil(log2 S) / 2 of the exact share
    for S sources. Rounding cumulative sums is slightly closer, but lets counts fall.
    """
    middle, whole = len(weights) // 2, sum(weights)
    if not middle:
        return [total]
    part = sum(weights[:middle])
    first = (2 * total * part + whole) // (2 * whole) if whole else 0
    return counts_at(first, weights[:middle]) + counts_at(total - first, weights[middle:])


class _Draws(NamedTuple):
    """The order of the sources; hashable."""

    seed: int
    weights: tuple[int, ...]
    length: int

    def blocks(
        self, epoch: int, positions: NDArray[np.int64]
    ) -> Iterator[tuple[NDArray[np.int64], NDArray[np.int64], Any]]:
        """Yield, for each block, the rows of `positions` in it, their places, and its `_block`."""
        numbers = positions // BLOCK
        for number in np.unique(numbers).tolist():
            rows = np.flatnonzero(numbers == number)
            yield rows, positions[rows] - number * BLOCK, _block(self, epoch, number)


@lru_cache(maxsize=64)
def _block(
    plan: _Draws, epoch: int, number: int
) -> tuple[list[int], NDArray[np.int64], NDArray[np.int64]]:
    """Return the draws of each source before a block, and the source and draw of each position."""
    first, last = number * BLOCK, min((number + 1) * BLOCK, plan.length)
    before, after = (
        counts_at(epoch * plan.length + position, plan.weights) for position in (first, last)
    )
    counts = np.subtract(after, before)
    keys = philox_words(plan.seed, epoch, first, last, Stream.MIX)[:, 0]
    sources = np.repeat(np.arange(len(counts)), counts)[np.argsort(keys, kind="stable")]
    draws = np.empty_like(sources)
    # The draws of a source follow each other in the order of the positions.
    start = np.subtract(before, np.cumsum(counts) - counts)
    draws[np.argsort(sources, kind="stable")] = np.arange(len(sources)) + np.repeat(start, counts)
    return before, sources, draws
