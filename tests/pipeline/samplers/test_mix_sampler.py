"""The sampler of a mix: exact shares, each source by its own sampler, any position at once."""

from __future__ import annotations

import pickle
from math import ceil, log2

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from penstock.core.contracts import SamplerCapabilities
from penstock.pipeline.samplers.mix import BLOCK, MixedSource, MixSampler, Mixture
from penstock.pipeline.samplers.random import RandomSampler
from penstock.pipeline.samplers.sequential import SequentialSampler
from penstock.pipeline.samplers.weighted import WeightedSampler
from tests.contracts.sampler import check_sampler
from tests.pipeline.loader.fakes import FakeIndex


def mix(sizes, weights, length=None, seed=3, samplers=None) -> MixSampler:
    samplers = samplers or [RandomSampler(n, seed=50 + i) for i, n in enumerate(sizes)]
    sources = tuple(
        MixedSource(f"s{i}", n, w, sampler if w else None)
        for i, (n, w, sampler) in enumerate(zip(sizes, weights, samplers, strict=True))
    )
    return MixSampler(sum(sizes), None, seed, mixed=Mixture(sources, length))


def split(sampler: MixSampler, sizes, records) -> tuple[np.ndarray, np.ndarray]:
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


@settings(max_examples=30, suppress_health_check=[HealthCheck.too_slow])
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
            sources, own = split(sampler, sizes, records[start : start + BLOCK])
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


def test_samplers_without_at_and_with_an_epoch_of_their_own():
    index = FakeIndex(np.array([0] * 20 + [1] * 5), ("ant", "bee"))
    own = [SequentialSampler(7), WeightedSampler(25, index, 1, num_samples=11)]
    sampler = mix((7, 25), (1, 1), 40, samplers=own)
    found = np.concatenate([sampler.indices(e, 0, 40) for e in range(2)])
    sources, records = split(sampler, (7, 25), found)
    assert np.array_equal(records[sources == 0], np.arange(40) % 7)
    weighted = np.concatenate([own[1].indices(e, 0, 11) for e in range(4)])
    assert np.array_equal(records[sources == 1], weighted[:40])
    assert sampler.capabilities.same == ("source", "label")
    assert mix((7, 25), (1, 1)).capabilities.same == ("source",)


def test_blocks_are_permuted_by_seed_epoch_and_block():
    def sources(epoch, block, seed=3):
        at = np.arange(block * BLOCK, (block + 1) * BLOCK)
        return mix((10**6,) * 2, (1, 1), 10**6, seed).at(epoch, at) >= 10**6

    blocks = [sources(0, 0), sources(0, 1), sources(1, 0), sources(0, 0, seed=4)]
    for number, one in enumerate(blocks):
        assert one.sum() == BLOCK // 2
        for other in blocks[number + 1 :]:
            assert 400 < (one == other).sum() < 624, "unrelated"
    # Neither begins a block, nor do runs differ from those of fair coins by much.
    changes = np.mean([np.diff(block.astype(int)) != 0 for block in blocks])
    assert 0.46 < changes < 0.54


def test_a_billion_positions_are_known_at_once():
    sizes = (10**12, 3 * 10**11, 7)
    sampler = mix(sizes, (5, 2, 0.001), 10**12)
    positions = np.array([0, 10**6, 10**12 - 1])
    for epoch in (0, 1_000):
        found = sampler.at(epoch, positions)
        assert [sampler.indices(epoch, p, p + 1)[0] for p in positions.tolist()] == found.tolist()
    assert len(pickle.dumps(sampler)) < 2_000


def test_partners_of_a_source_are_what_it_draws_next():
    sizes = (30, 50)
    sampler = mix(sizes, (1, 3), 2_000)
    records = np.concatenate([sampler.indices(1, 0, 2_000), sampler.indices(2, 0, 2_000)])
    sources, own = split(sampler, sizes, records)
    positions = np.array([0, 5, 1_023, 1_024, 1_999])
    for number in (0, 1):
        expected = [own[p:][sources[p:] == number][0] for p in positions.tolist()]
        assert sampler.of_source(number, 1, positions).tolist() == expected


@pytest.mark.parametrize(
    ("sizes", "weights", "message"),
    [
        ((5, 5), (1, -1), "weight of 's1' is -1, expected a number from 0 on; set dataset.sources"),
        ((5, 5), (float("nan"), 1), "weight of 's0' is nan"),
        ((5, 5), (1, float("inf")), "weight of 's1' is inf"),
        ((5, 5), (0, 0), r"no source is drawn \(s0, s1\): all weights are 0"),
        ((), (), "sampler mix: no source is drawn"),
        ((5, 0), (1, 1), r"'s1'.* 0 records.*dataset\.sources\.s1\.weight=0"),
    ],
)
def test_what_cannot_be_mixed_is_refused(sizes, weights, message):
    with pytest.raises(ValueError, match=message) as caught:
        mix(sizes, weights)
    assert "\n" not in str(caught.value)


def test_an_empty_source_may_be_switched_off():
    assert mix((5, 0), (1, 0)).indices(0, 0, 5).max() < 5


def test_weights_within_a_source_are_part_of_the_fingerprint():
    drawn = [
        WeightedSampler(3, FakeIndex(np.arange(3)), weights={2: weight}) for weight in (1.0, 2.0)
    ]
    one, other = (mix((3, 5), (1, 1), samplers=[each, SequentialSampler(5)]) for each in drawn)
    assert one.fingerprint() != other.fingerprint()


def test_groups_and_a_mix_of_nothing_are_refused():
    class Pairs(SequentialSampler):
        capabilities = SamplerCapabilities(group=2)

    with pytest.raises(ValueError, match="sampler of 's1' keeps 2 positions together"):
        mix((4, 4), (1, 1), samplers=[SequentialSampler(4), Pairs(4)])
    with pytest.raises(ValueError, match=r"sampler mix: .*set dataset=mix"):
        MixSampler(5)
