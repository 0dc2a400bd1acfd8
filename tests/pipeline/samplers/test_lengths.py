"""Samplers by length: little padding, no batch above its tokens, equal work for ranks."""

from __future__ import annotations

import numpy as np
import pytest

from penstock.datasets.records.table import Table
from penstock.pipeline.loader.plan import rank_slice
from penstock.pipeline.samplers.lengths import (
    LengthBucketSampler,
    PackedSampler,
    TokenBudgetSampler,
)


def lengths_of(n: int) -> np.ndarray:
    return np.exp(np.random.default_rng(n).normal(3.7, 0.7, n)).astype(np.int64) + 1


def index_of(lengths: np.ndarray) -> Table:
    return Table([f"{i}" for i in range(len(lengths))], {"length": lengths})


def bucketed(n: int, batch_size: int = 16, seed: int = 3, **arguments) -> LengthBucketSampler:
    return LengthBucketSampler(n, index_of(lengths_of(n)), seed, batch_size, **arguments)


def budgeted(lengths: np.ndarray, most: int = 64, **arguments) -> TokenBudgetSampler:
    return TokenBudgetSampler(len(lengths), index_of(lengths), 3, most, **arguments)


def packed(lengths: np.ndarray, **arguments) -> PackedSampler:
    return PackedSampler(len(lengths), index_of(lengths), 3, **arguments)


def batches(sampler, epoch: int = 0) -> list[np.ndarray]:
    """Records of each batch."""
    bounds = sampler.cuts(epoch).tolist()
    assert (bounds[0], bounds[-1]) == (0, len(sampler))
    return np.split(sampler.indices(epoch, 0, len(sampler)), bounds[1:-1])


MADE = {
    "length_bucket": lambda epoch: bucketed(6400).indices(epoch, 0, 6400).reshape(-1, 16),
    "token_budget": lambda epoch: batches(budgeted(lengths_of(6400), max_tokens=2000), epoch),
}


@pytest.mark.parametrize("epoch_of", MADE.values(), ids=MADE)
def test_batches_of_similar_lengths_come_in_any_order_and_of_other_records(epoch_of):
    lengths, first, second = lengths_of(6400), epoch_of(0), epoch_of(1)
    padded = sum(len(records) * lengths[records].max() for records in first)
    assert lengths.sum() / padded > 0.9
    means = np.array([lengths[records].mean() for records in first])
    assert abs(np.corrcoef(means[:-1], means[1:])[0, 1]) < 0.15
    pairs = [{tuple(sorted(r[[a, a + 1]])) for r in found for a in range(len(r) - 1)}
             for found in (first, second)]  # fmt: skip
    assert len(pairs[0] & pairs[1]) < len(pairs[0]) / 25


@pytest.mark.parametrize("world_size", [2, 3, 4, 8])
def test_ranks_get_equal_work(world_size):
    """Even where a batch spans all lengths: one window that is one batch."""
    n = size = 96
    lengths = lengths_of(n)[bucketed(n, size).indices(0, 0, n)]
    work = [lengths[slice(*rank_slice(size, world_size, rank))].sum() for rank in range(world_size)]
    assert max(work) / min(work) < 1.45


@pytest.mark.parametrize("n", [1, 7, 53, 1000, 6400])
@pytest.mark.parametrize(("most", "budget"), [(64, 700), (3, 700), (1, 900), (10_000, 5_000)])
def test_no_batch_is_above_the_budget_and_every_epoch_has_as_many(n, most, budget):
    lengths = lengths_of(n)
    sampler = budgeted(lengths, most, max_tokens=budget)
    counts = set()
    for epoch in range(3):
        found = batches(sampler, epoch)
        counts.add(len(found))
        for records in found:
            assert 0 < len(records) <= most and len(records) * lengths[records].max() <= budget
    assert len(counts) == 1
    if n == 6400 and most == 64:
        assert lengths.sum() > 0.85 * len(found) * budget


LISTS = {
    "log-normal": np.minimum(lengths_of(1000), 699),
    "empty": np.zeros(5, int),
    "one": np.array([699]),
    "all as long as can be": np.full(90, 699),
    "long and short": np.r_[np.full(50, 699), np.ones(900, int)],
}


@pytest.mark.parametrize("lengths", LISTS.values(), ids=LISTS)
def test_packed_batches_have_the_most_tokens_and_every_epoch_has_as_many(lengths):
    sampler = packed(lengths, max_tokens=700)
    found = [[lengths[part].sum() for part in batches(sampler, epoch)] for epoch in range(3)]
    assert max(map(max, found)) <= 700 and len({*map(len, found)}) == 1


def test_longer_records_count_as_the_longest():
    lengths = np.array([5, 900, 7, 6])
    assert len(batches(budgeted(lengths, max_tokens=40, max_length=10))) == 1
    assert len(batches(packed(lengths, max_tokens=40, max_length=10))) == 1


@pytest.mark.parametrize(
    ("make", "columns", "message"),
    [
        (LengthBucketSampler, {"label": [0, 1]}, "column 'length'.*: label;.*length_column=tok"),
        (LengthBucketSampler, {"length": [1.5, 2]}, "float64"),
        (LengthBucketSampler, {"length": [3, -2]}, r"row 1 \(b\) has length -2"),
        (TokenBudgetSampler, {"length": [3, 50]}, r"record 1 \(b\) has length 50, .* at most 40; "
         "set sampler.max_tokens=50"),
        (PackedSampler, {"length": [3, 40]}, "has length 40, expected at most 39; .*_tokens=80"),
    ],
)  # fmt: skip
def test_what_are_no_lengths_or_too_long(make, columns, message):
    arguments = {} if make is LengthBucketSampler else {"max_tokens": 40}
    with pytest.raises(ValueError, match=message):
        make(2, Table(["a", "b"], columns), 0, **arguments)
