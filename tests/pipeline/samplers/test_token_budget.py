"""Batches of as many tokens: no batch above the budget, as many batches in every epoch."""

from __future__ import annotations

import numpy as np
import pytest

from penstock.datasets.records.table import Table
from penstock.pipeline.samplers.token_budget import TokenBudgetSampler
from tests.contracts.sampler import check_sampler


def lengths_of(n: int) -> np.ndarray:
    return np.exp(np.random.default_rng(n).normal(3.7, 0.7, n)).astype(np.int64) + 1


def make(lengths: np.ndarray, seed: int = 3, most: int = 64, **arguments) -> TokenBudgetSampler:
    index = Table([f"{i}" for i in range(len(lengths))], {"length": lengths})
    return TokenBudgetSampler(len(lengths), index, seed, most, **arguments)


def batches(sampler: TokenBudgetSampler, epoch: int = 0) -> list[np.ndarray]:
    """Records of each batch."""
    bounds = sampler.cuts(epoch).tolist()
    assert (bounds[0], bounds[-1]) == (0, len(sampler))
    return np.split(sampler.indices(epoch, 0, len(sampler)), bounds[1:-1])


@pytest.mark.parametrize("n", [1, 53, 1000])
def test_contract(n):
    sampler = make(lengths_of(n), max_tokens=700)
    check_sampler(sampler, n=n, shuffles=n > 1, exactly_once=True)


@pytest.mark.parametrize("n", [1, 7, 53, 1000, 6400])
@pytest.mark.parametrize(("most", "budget"), [(64, 700), (3, 700), (1, 900), (10_000, 5_000)])
def test_no_batch_is_above_the_budget_and_little_is_padding(n, most, budget):
    lengths = lengths_of(n)
    sampler = make(lengths, most=most, max_tokens=budget)
    counts = set()
    for epoch in range(3):
        found = batches(sampler, epoch)
        counts.add(len(found))
        for records in found:
            assert 0 < len(records) <= most and len(records) * lengths[records].max() <= budget
    assert len(counts) == 1, "as many in every epoch"
    if n == 6400 and most == 64:
        paid = sum(len(records) * lengths[records].max() for records in found)
        assert paid < 1.07 * lengths.sum() and paid > 0.9 * len(found) * budget


def test_batches_come_in_any_order_and_of_other_records():
    lengths = lengths_of(6400)
    sampler = make(lengths, max_tokens=2000)
    first, second = batches(sampler, 0), batches(sampler, 1)
    means = np.array([lengths[records].mean() for records in first])
    assert abs(np.corrcoef(means[:-1], means[1:])[0, 1]) < 0.15
    pairs = [{tuple(sorted(r[[a, a + 1]])) for r in found for a in range(len(r) - 1)}
             for found in (first, second)]  # fmt: skip
    assert len(pairs[0] & pairs[1]) < len(pairs[0]) / 25


def test_lengths_that_are_cut_count_as_what_is_left():
    lengths = np.array([5, 900, 7, 6])
    (found,) = batches(make(lengths, max_tokens=40, max_length=10))
    assert sorted(found.tolist()) == [0, 1, 2, 3]


@pytest.mark.parametrize(
    ("lengths", "arguments", "message"),
    [
        ([3, 50], {"max_tokens": 40}, r"record 1 \(1\) has length 50, .* sampler.max_tokens=50"),
        ([3, 50], {"max_tokens": 40, "column": "size"}, "no column 'size'"),
        ([3, -1], {"max_tokens": 40}, "has length -1"),
    ],
)
def test_what_cannot_be_is_said(lengths, arguments, message):
    with pytest.raises(ValueError, match=message):
        make(np.array(lengths), **arguments)
