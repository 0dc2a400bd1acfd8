"""Mix several data sets, each with its exact share of the positions."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from penstock.core.contracts import Index, Sampler, SamplerCapabilities, capabilities_of
from penstock.core.registry import register
from penstock.core.rng import Stream, philox_words

BLOCK = 1_024
"""Positions in a block, which has each source's exact share."""


@dataclass(frozen=True, slots=True)
class MixedSource:
    """A source of a mix; weight 0 is never drawn and needs no sampler."""

    name: str
    size: int
    weight: float
    sampler: Sampler | None


@dataclass(frozen=True, slots=True)
class Mixture:
    """Sources in record order; `length` None is the sum of the drawn samplers' lengths."""

    sources: tuple[MixedSource, ...]
    length: int | None = None


@register("sampler", "mix")
class MixSampler:
    """Draw from several data sets by their weights; only for ``dataset=mix``.

    Each block of 1,024 positions has every source's exact share, rounded over all epochs, in random
    order. The draws of a source follow its own sampler from the start of training: an epoch of the
    mix resumes each source where the last epoch stopped, and a source restarts only when it is
    exhausted. Computes any position directly.
    """

    def __init__(
        self, n: int, index: Index | None = None, seed: int = 0, *, mixed: Mixture | None = None
    ) -> None:
        if mixed is None:
            raise ValueError(
                "sampler mix: the data set is not a mix; set dataset=mix, or sampler=random"
            )
        _check(mixed)
        self._sources = mixed.sources
        self._firsts = np.cumsum([0, *(source.size for source in mixed.sources)])
        assert self._firsts[-1] == n, "a mix has the records of all its sources"
        own = [len(source.sampler) for source in mixed.sources if source.sampler and source.weight]
        weights = whole_weights([source.weight for source in mixed.sources])
        self._plan = _Plan(seed, weights, mixed.length or sum(own))
        self._can = [capabilities_of(s.sampler, SamplerCapabilities) for s in mixed.sources]
        drawn = (can for s, can in zip(mixed.sources, self._can, strict=True) if s.weight)
        self._same = ("source", *sorted({name for can in drawn for name in can.same}))

    @property
    def capabilities(self) -> SamplerCapabilities:
        """Return random access to positions, of all sources or one."""
        return SamplerCapabilities(
            same=self._same,
            at=self.at,
            fingerprint=self.fingerprint,
            uses=self.uses,
            of_source=self.of_source,
            sampler_of=self.sampler_of,
        )

    def __len__(self) -> int:
        return self._plan.length

    def sampler_of(self, name: str) -> Sampler | None:
        """Return the sampler of a source, or None if it is not drawn."""
        return next(source.sampler for source in self._sources if source.name == name)

    def fingerprint(self) -> str:
        """Return a hash of the samplers' external inputs, such as weights in a file."""
        digest = hashlib.blake2b(digest_size=12)
        for source, can in zip(self._sources, self._can, strict=True):
            own = can.fingerprint
            digest.update(f"{source.name}:{own() if own else ''};".encode())
        return digest.hexdigest()

    def uses(self) -> NDArray[np.float64]:
        """Return each record's share of the draws, float64 [n]."""
        shares = []
        for source, can in zip(self._sources, self._can, strict=True):
            own = np.ones(source.size) if can.uses is None else can.uses()
            shares.append(source.weight * own / max(own.sum(), 1e-300))
        return np.concatenate(shares)

    def indices(self, epoch: int, start: int, stop: int) -> NDArray[np.int64]:
        """Return the records at positions ``start .. stop - 1`` of `epoch`, int64."""
        return self.at(epoch, np.arange(start, stop, dtype=np.int64))

    def at(self, epoch: int, positions: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the records at any positions of `epoch`, int64 [n]."""
        sources = np.empty(len(positions), np.int16)
        draws = np.empty(len(positions), np.int64)
        for rows, places, block in _by_block(self._plan, epoch, positions):
            sources[rows], draws[rows] = block.sources[places], block.draws[places]
        records = np.empty(len(positions), np.int64)
        for number, source in enumerate(self._sources):
            rows = np.flatnonzero(sources == number)
            if rows.size:
                records[rows] = self._firsts[number] + _records_of(source, draws[rows])
        return records

    def of_source(self, number: int, epoch: int, positions: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the records, in source `number`, that it gives next from each position on, [n]."""
        draws = np.empty(len(positions), np.int64)
        for rows, places, block in _by_block(self._plan, epoch, positions):
            held = np.flatnonzero(block.sources == number)
            draws[rows] = block.before[number] + np.searchsorted(held, places)
        return _records_of(self._sources[number], draws)


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
    if len(weights) == 1:
        return [total]
    middle = len(weights) // 2
    part, whole = sum(weights[:middle]), sum(weights)
    first = (2 * total * part + whole) // (2 * whole) if whole else 0
    return counts_at(first, weights[:middle]) + counts_at(total - first, weights[middle:])


@dataclass(frozen=True, slots=True)
class _Plan:
    seed: int
    weights: tuple[int, ...]
    length: int

    def counts(self, epoch: int, position: int) -> list[int]:
        """Return the draws of each source before a position."""
        return counts_at(epoch * self.length + position, self.weights)


@dataclass(frozen=True, slots=True)
class _Block:
    """A block: draws of each source before it; by position [n], the source and its draw number."""

    before: list[int]
    sources: NDArray[np.int16]
    draws: NDArray[np.int64]


@lru_cache(maxsize=64)
def _block(plan: _Plan, epoch: int, number: int) -> _Block:
    first, last = number * BLOCK, min((number + 1) * BLOCK, plan.length)
    before = plan.counts(epoch, first)
    counts = np.subtract(plan.counts(epoch, last), before)
    keys = philox_words(plan.seed, epoch, first, last, Stream.MIX)[:, 0]
    in_order = np.repeat(np.arange(len(before), dtype=np.int16), counts)
    sources = in_order[np.argsort(keys, kind="stable")]
    draws = np.empty(len(sources), np.int64)
    # The draws of a source follow each other in the order of the positions.
    start = np.subtract(before, np.cumsum(counts) - counts)
    draws[np.argsort(sources, kind="stable")] = np.arange(len(sources)) + np.repeat(start, counts)
    return _Block(before, sources, draws)


def _by_block(
    plan: _Plan, epoch: int, positions: NDArray[np.int64]
) -> Iterator[tuple[Any, NDArray[np.int64], _Block]]:
    """Yield each block with the rows of `positions` in it and their places."""
    numbers = positions // BLOCK
    if positions.size and numbers[0] == numbers[-1] and (numbers == numbers[0]).all():
        number = int(numbers[0])
        yield slice(None), positions - number * BLOCK, _block(plan, epoch, number)
        return
    for number in np.unique(numbers).tolist():
        rows = np.flatnonzero(numbers == number)
        yield rows, positions[rows] - number * BLOCK, _block(plan, epoch, number)


def _records_of(source: MixedSource, draws: NDArray[np.int64]) -> NDArray[np.int64]:
    sampler = source.sampler
    assert sampler is not None, "a source that is never drawn"
    epochs, positions = np.divmod(draws, len(sampler))
    records = np.empty(len(draws), np.int64)
    # Runs of consecutive positions.
    cuts = np.flatnonzero((np.diff(draws) != 1) | (np.diff(epochs) != 0)) + 1
    scattered = capabilities_of(sampler, SamplerCapabilities).at
    if scattered is not None and cuts.size:
        for epoch in np.unique(epochs).tolist():
            rows = np.flatnonzero(epochs == epoch)
            records[rows] = scattered(epoch, positions[rows])
        return records
    starts = [0, *cuts.tolist()] if len(draws) else []
    for start, stop in zip(starts, [*starts[1:], len(draws)], strict=True):
        epoch, first = int(epochs[start]), int(positions[start])
        records[start:stop] = sampler.indices(epoch, first, first + stop - start)
    return records


def _check(mixed: Mixture) -> None:
    for source in mixed.sources:
        key = f"dataset.sources.{source.name}"
        if not (source.weight >= 0 and math.isfinite(source.weight)):
            raise ValueError(
                f"sampler mix: the weight of {source.name!r} is {source.weight}, expected a number "
                f"from 0 on; set {key}.weight=1, or 0 to draw nothing from it"
            )
        if not source.weight:
            continue
        if source.sampler is None or not len(source.sampler):
            raise ValueError(
                f"sampler mix: nothing to draw from {source.name!r}, which has {source.size} "
                f"records to train on; check its data and its val_fraction, or set {key}.weight=0"
            )
        can = capabilities_of(source.sampler, SamplerCapabilities)
        if can.group > 1 or can.cuts:
            kept = "batches" if can.cuts else f"{can.group} positions"
            raise ValueError(
                f"sampler mix: the sampler of {source.name!r} keeps {kept} together, "
                f"and a mix splits them; set {key}.sampler=random"
            )
    if not any(source.weight for source in mixed.sources):
        names = ", ".join(source.name for source in mixed.sources) or "none given"
        raise ValueError(
            f"sampler mix: no source is drawn ({names}): all weights are 0; give one a weight"
        )
