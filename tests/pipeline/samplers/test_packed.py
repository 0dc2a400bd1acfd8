"""Batches of at most so many tokens of data, every record once, as many batches in each epoch."""

from __future__ import annotations

import numpy as np
import pytest

from penstock.datasets.records.table import Table
from penstock.pipeline.samplers.packed import PackedSampler
from tests.contracts.sampler import check_sampler


def lengths_of(n: int) -> np.ndarray:
    return np.exp(np.random.default_rng(n).normal(3.7, 0.7, n)).astype(np.int64)


def make(lengths: np.ndarray, **arguments) -> PackedSampler:
    index = Table([f"{i}" for i in range(len(lengths))], {"length": lengths})
    return PackedSampler(len(lengths), index, 3, **arguments)


@pytest.mark.parametrize("n", [1, 53, 1000])
def test_contract(n):
    check_sampler(make(lengths_of(n), max_tokens=700), n=n, shuffles=n > 1, exactly_once=True)


LISTS = {
    "log-normal": lengths_of(1000),
    "empty": np.zeros(5, int),
    "one": np.array([699]),
    "all as long as can be": np.full(90, 699),
    "long and short": np.r_[np.full(50, 699), np.ones(900, int)],
}


@pytest.mark.parametrize("lengths", LISTS.values(), ids=LISTS)
def test_no_batch_is_above_the_most_and_every_epoch_has_as_many(lengths):
    sampler = make(lengths, max_tokens=700)
    counts = set()
    for epoch in range(3):
        cuts = sampler.cuts(epoch)
        order = sampler.indices(epoch, 0, len(sampler))
        assert (cuts[0], cuts[-1], (np.diff(cuts) >= 0).all()) == (0, len(lengths), True)
        sums = [lengths[part].sum() for part in np.split(order, cuts[1:-1])]
        assert max(sums) <= 700
        counts.add(len(sums))
    assert len(counts) == 1


def test_a_record_that_fills_a_batch_is_refused():
    with pytest.raises(
        ValueError,
        match=r"record 1 \(1\) has length 9, expected at most 8; set sampler.max_tokens=18",
    ):
        make(np.array([3, 9]), max_tokens=9)
    assert len(make(np.array([3, 9]), max_tokens=9, max_length=8)) == 2
