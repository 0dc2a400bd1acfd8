"""Batches of like lengths: the same laws as every order, little padding, equal work for ranks."""

from __future__ import annotations

import numpy as np
import pytest

from penstock.datasets.records.table import Table
from penstock.pipeline.loader.plan import rank_slice
from penstock.pipeline.samplers.length_bucket import LengthBucketSampler
from tests.contracts.sampler import check_sampler


def lengths_of(n: int) -> np.ndarray:
    return np.exp(np.random.default_rng(n).normal(3.7, 0.7, n)).astype(np.int64) + 1


def make(n: int, batch_size: int = 16, seed: int = 3, **arguments) -> LengthBucketSampler:
    index = Table([f"{i}" for i in range(n)], {"length": lengths_of(n)})
    return LengthBucketSampler(n, index, seed, batch_size, **arguments)


def batches(sampler: LengthBucketSampler, size: int, epoch: int = 0) -> np.ndarray:
    whole = len(sampler) // size * size
    return sampler.indices(epoch, 0, whole).reshape(-1, size)


@pytest.mark.parametrize(("n", "size"), [(16, 16), (53, 16), (5, 16), (1000, 7), (1000, 1)])
def test_contract(n, size):
    check_sampler(make(n, size, window=3), n=n, shuffles=True, exactly_once=True)


def test_the_order_is_the_same_in_another_process_and_for_ever():
    found = make(20, 4, window=2).indices(1, 0, 20).tolist()
    assert found == [6, 0, 15, 9, 13, 5, 7, 19, 10, 3, 17, 4, 11, 1, 16, 2, 14, 12, 8, 18]


def test_batches_hold_like_lengths_and_are_shuffled():
    n, size = 6400, 16
    lengths = lengths_of(n)
    found = lengths[batches(make(n, size), size)]
    padding = 1 - found.sum() / (found.max(1) * size).sum()
    at_random = lengths[np.random.default_rng(0).permutation(n).reshape(-1, size)]
    assert padding < 0.1 < 0.5 < 1 - at_random.sum() / (at_random.max(1) * size).sum()
    means = found.mean(1)
    assert abs(np.corrcoef(means[:-1], means[1:])[0, 1]) < 0.15, "batches come in any order"


def test_records_meet_others_in_every_epoch():
    sampler = make(1600, 16)
    pairs = [
        {tuple(sorted(batch[[a, a + 1]])) for batch in batches(sampler, 16, epoch)
         for a in range(15)}
        for epoch in range(2)
    ]  # fmt: skip
    assert len(pairs[0] & pairs[1]) < len(pairs[0]) / 25


@pytest.mark.parametrize("world_size", [2, 3, 4, 8])
def test_ranks_get_equal_work(world_size):
    """Even where a batch spans all lengths: one window that is one batch."""
    n = size = 96
    lengths = lengths_of(n)[make(n, size).indices(0, 0, n)]
    work = [lengths[slice(*rank_slice(size, world_size, rank))].sum() for rank in range(world_size)]
    assert max(work) / min(work) < 1.45
    ordered = np.sort(lengths)
    halves = ordered[: size // world_size].sum(), ordered[-(size // world_size) :].sum()
    assert halves[1] / halves[0] > 2


def test_the_tail_is_of_all_lengths():
    n, size = 1015, 16
    lengths = lengths_of(n)
    tails = [lengths[make(n, size, seed).indices(0, n - n % size, n)] for seed in range(40)]
    error = lengths.std() / np.sqrt(40 * (n % size))
    assert abs(np.concatenate(tails).mean() - lengths.mean()) < 4 * error


def test_longer_ones_count_as_the_longest():
    lengths = np.minimum(lengths_of(100), 30)
    index = Table([f"{i}" for i in range(100)], {"length": lengths})
    cut, short = make(100, max_length=30), LengthBucketSampler(100, index, 3, 16)
    assert cut.indices(0, 0, 100).tolist() == short.indices(0, 0, 100).tolist()
    assert lengths_of(100).max() > 30


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({"label": [0, 1]}, "no column 'length'.*columns: label;.*length_column=tokens"),
        ({"length": [1.5, 2]}, "float64"),
        ({"length": [3, -2]}, r"row 1 \(b\) has length -2"),
    ],
)
def test_what_are_no_lengths(columns, message):
    with pytest.raises(ValueError, match=message):
        LengthBucketSampler(2, Table(["a", "b"], columns), 0, 2)
