"""The sampler of a mix: exact shares, each source by its own sampler, any position at once."""

from __future__ import annotations

from math import ceil, log2

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from penstock.pipeline.samplers.mix import BLOCK, MixedSource, MixSampler, Mixture
from penstock.pipeline.samplers.random import RandomSampler, SequentialSampler
from tests.contracts.sampler import check_sampler

SLOW = [HealthCheck.too_slow]


def mix(sizes, weights, length=None, seed=3, samplers=None) -> MixSampler:
    samplers = samplers or [RandomSampler(n, seed=50 + i) for i, n in enumerate(sizes)]
    sources = tuple(
        MixedSource(f"s{i}", n, w, sampler if w else None)
        for i, (n, w, sampler) in enumerate(zip(sizes, weights, samplers, strict=True))
    )
    return MixSampler(sum(sizes), seed, mixed=Mixture(sources, length))


def split(sizes, records) -> tuple[np.ndarray, np.ndarray]:
    """Source and own index of each record."""
    firsts = np.cumsum([0, *sizes])
    sources = np.searchsorted(firsts[1:], records, side="right")
    return sources, records - firsts[sources]


@pytest.mark.parametrize("length", [None, 53, BLOCK, 2 * BLOCK + 1])
@pytest.mark.parametrize("weights", [(3, 1, 0.5), (1, 0, 2), (1, 1e-5, 1)])
def test_contract(weights, length):
    sampler = mix((70, 41, 23), weights, length)
    assert len(sampler) == (length or (93 if weights[1] == 0 else 134))
    check_sampler(sampler, n=134, shuffles=True, exactly_once=False)


@settings(max_examples=30, suppress_health_check=SLOW)
@given(
    sizes=st.lists(st.integers(1, 1_500), min_size=1, max_size=5),
    weights=st.lists(st.floats(1e-3, 1e3) | st.integers(1, 5), min_size=5, max_size=5),
    length=st.integers(1, 2_600),
    data=st.data(),
)
def test_shares_are_exact_and_the_draws_are_the_samplers_own(sizes, weights, length, data):
    off = data.draw(st.integers(0, len(sizes) - 1)) if len(sizes) > 1 else None
    weights = [0.0 if i == off else float(w) for i, w in enumerate(weights[: len(sizes)])]
    sampler = mix(sizes, weights, length)
    shares = np.array(weights) / sum(weights)
    bound = ceil(log2(len(sizes))) / 2 + 1e-6
    drawn: list[list[int]] = [[] for _ in sizes]
    counts = np.zeros(len(sizes), np.int64)
    for epoch in range(3):
        records = sampler.indices(epoch, 0, length)
        for start in range(0, length, BLOCK):
            sources, own = split(sizes, records[start : start + BLOCK])
            counts += np.bincount(sources, minlength=len(sizes))
            assert np.abs(counts - shares * counts.sum()).max() <= bound
            for source, index in zip(sources.tolist(), own.tolist(), strict=True):
                drawn[source].append(index)
        start, stop = sorted(data.draw(st.integers(0, length)) for _ in range(2))
        assert np.array_equal(sampler.indices(epoch, start, stop), records[start:stop])
        places = np.array(data.draw(st.lists(st.integers(0, length - 1), max_size=9)), np.int64)
        assert np.array_equal(sampler.at(epoch, places), records[places])
    for number, (size, found) in enumerate(zip(sizes, drawn, strict=True)):
        alone = RandomSampler(size, seed=50 + number)
        epochs = range(-(-len(found) // size))
        expected = np.concatenate([[], *(alone.indices(e, 0, size) for e in epochs)])
        assert np.array_equal(found, expected[: len(found)]), "its own sampler's, epoch by epoch"


def test_partners_of_a_source_are_what_it_draws_next():
    sizes = (30, 50)
    sampler = mix(sizes, (1, 3), 2_000)
    records = np.concatenate([sampler.indices(1, 0, 2_000), sampler.indices(2, 0, 2_000)])
    sources, own = split(sizes, records)
    positions = np.array([0, 5, 1_023, 1_024, 1_999])
    for number in (0, 1):
        expected = [own[p:][sources[p:] == number][0] for p in positions.tolist()]
        assert sampler.of_source(number, 1, positions).tolist() == expected


def test_sources_that_cannot_be_mixed_are_refused():
    class Pairs(SequentialSampler):
        group = 2

    with pytest.raises(ValueError, match=r"'s1' has 0 records .*dataset.sources.s1.weight=0"):
        mix((5, 0), (1, 1))
    assert mix((5, 0), (1, 0)).indices(0, 0, 5).max() < 5
    with pytest.raises(ValueError, match="sampler of 's1' keeps positions together"):
        mix((4, 4), (1, 1), samplers=[SequentialSampler(4), Pairs(4)])
