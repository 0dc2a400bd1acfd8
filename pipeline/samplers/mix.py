"""Mix several data sets, each with its exact share of the positions."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from fractions import Fraction
from functools import lru_cache
from math import floor
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from penstock.core.contracts import DirectSampler, Sampler
from penstock.core.registry import register
from penstock.core.rng import Stream, philox_words
from penstock.pipeline.epoch_orders import by_value

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
    mix resumes each source where the last epoch stopped.

    Attributes:
        samplers: The samplers of the drawn sources, by name.
    """

    def __init__(self, n: int, seed: int = 0, *, mixed: Mixture) -> None:
        self.samplers = {s.name: _drawable(s) for s in mixed.sources if s.weight}
        drawn = self.samplers.values()
        self.same = ("source", *sorted({name for sampler in drawn for name in sampler.same}))
        self._names = [source.name for source in mixed.sources]
        self._firsts = np.cumsum([0, *(source.size for source in mixed.sources)])
        self._weights = tuple(Fraction(source.weight) for source in mixed.sources)
        self._seed, self._length = seed, mixed.length or sum(map(len, drawn))

    def __len__(self) -> int:
        return self._length

    def fingerprint(self) -> str:
        """Return the hashes of the samplers' external inputs, such as weights in a file."""
        return " ".join(sampler.fingerprint() for sampler in self.samplers.values())

    def at(self, epoch: int, positions: NDArray[np.int64]) -> NDArray[np.int64]:
        sources, draws, records = np.empty((3, len(positions)), np.int64)
        for rows, places, (_, block_sources, block_draws) in self._blocks(epoch, positions):
            sources[rows], draws[rows] = block_sources[places], block_draws[places]
        for number, rows in by_value(sources):
            records[rows] = self._firsts[number] + self._records_of(number, draws[rows])
        return records

    def of_source(self, number: int, epoch: int, positions: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the next record of a source from each position on, numbered there, int64 [n]."""
        draws = np.empty(len(positions), np.int64)
        for rows, places, (before, sources, _) in self._blocks(epoch, positions):
            own = np.flatnonzero(sources == number)
            draws[rows] = before[number] + np.searchsorted(own, places)
        return self._records_of(number, draws)

    def _blocks(self, epoch: int, positions: NDArray[np.int64]) -> Iterator[tuple[Any, Any, Any]]:
        """Yield, for each block, the rows of `positions` in it, their places, and its `_block`."""
        for number, rows in by_value(positions // BLOCK):
            block = _block(self._seed, self._weights, self._length, epoch, number)
            yield rows, positions[rows] - number * BLOCK, block

    def _records_of(self, number: int, draws: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the records of a source's draws, int64 [n], numbered in that source."""
        sampler = self.samplers[self._names[number]]
        epochs, positions = np.divmod(draws, len(sampler))
        records = np.empty_like(draws)
        for epoch, rows in by_value(epochs):
            records[rows] = sampler.at(epoch, positions[rows])
        return records


def _drawable(source: MixedSource) -> Sampler:
    """Return the sampler of a source; raise ValueError if the source cannot be mixed."""
    key, sampler = f"dataset.sources.{source.name}", source.sampler
    if sampler is None or not len(sampler):
        text = f"source {source.name!r} has {source.size} records to train on; check its data"
        raise ValueError(f"sampler mix: {text} and val_fraction, or set {key}.weight=0")
    if sampler.group > 1 or sampler.cuts(0) is not None:
        text = f"the sampler of {source.name!r} keeps positions together, which a mix separates"
        raise ValueError(f"sampler mix: {text}; set {key}.sampler=random")
    return sampler


def counts_at(total: int, weights: Sequence[Fraction]) -> list[int]:
    """Divide the first `total` draws among the sources, by cumulative rounding.

    Splits the sources in half recursively and rounds the share of each first half. Counts never
    fall as `total` grows, and are within ceil(log2 S) / 2 of the exact share for S sources.
    """
    middle, whole = len(weights) // 2, sum(weights)
    if not middle:
        return [total]
    first = floor(total * sum(weights[:middle]) / whole + Fraction(1, 2)) if whole else 0
    return counts_at(first, weights[:middle]) + counts_at(total - first, weights[middle:])


@lru_cache(maxsize=64)
def _block(
    seed: int, weights: tuple[Fraction, ...], length: int, epoch: int, number: int
) -> tuple[list[int], NDArray[np.int64], NDArray[np.int64]]:
    """Return the draws of each source before a block, and the source and draw of each position."""
    first, last = number * BLOCK, min((number + 1) * BLOCK, length)
    before, after = (counts_at(epoch * length + position, weights) for position in (first, last))
    counts = np.subtract(after, before)
    keys = philox_words(seed, epoch, first, last, Stream.MIX)[:, 0]
    sources = np.repeat(np.arange(len(counts)), counts)[np.argsort(keys, kind="stable")]
    draws = np.empty_like(sources)
    # The draws of a source follow each other in the order of the positions.
    start = np.subtract(before, np.cumsum(counts) - counts)
    draws[np.argsort(sources, kind="stable")] = np.arange(len(sources)) + np.repeat(start, counts)
    return before, sources, draws
