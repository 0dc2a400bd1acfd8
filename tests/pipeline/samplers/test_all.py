"""Every sampler: the contract, orders that no version changes, and what decides them."""

from __future__ import annotations

import hashlib

import numpy as np
import pytest
import torch
from scipy.stats import chi2

from penstock.datasets.records.table import Table
from penstock.pipeline.samplers.classes import BalancedBatchSampler, IdentitySampler
from penstock.pipeline.samplers.lengths import (
    LengthBucketSampler,
    PackedSampler,
    TokenBudgetSampler,
)
from penstock.pipeline.samplers.random import (
    InfiniteSampler,
    RandomSampler,
    SequentialSampler,
    ShardShuffleSampler,
    make_inference_sampler,
)
from penstock.pipeline.samplers.torch import TorchSampler
from penstock.pipeline.samplers.weighted import WeightedSampler
from tests.contracts.sampler import check_sampler

N = 96
COLUMNS = {
    "label": np.arange(N) % 12 % 5,
    "length": np.random.default_rng(1).integers(1, 90, N),
    "size": np.arange(N) + 1.0,
}
INDEX = Table([f"{i}" for i in range(N)], COLUMNS, ["ant", "bee", "cat", "dog", "elk"])
TORCH = torch.utils.data

MADE = {
    "balanced_batch": lambda n, index, seed: BalancedBatchSampler(n, index, seed, batch_size=20),
    "balanced_batch of some": lambda n, index, seed: BalancedBatchSampler(
        n, index, seed, batch_size=9, classes=3, num_batches=11
    ),
    "identity": lambda n, index, seed: IdentitySampler(n, index, seed, batch_size=16),
    "infinite": lambda n, index, seed: InfiniteSampler(n, seed, batch_size=9, steps=11),
    "length_bucket": lambda n, index, seed: LengthBucketSampler(n, index, seed, 8, window=3),
    "packed": lambda n, index, seed: PackedSampler(n, index, seed, max_tokens=300),
    "random": lambda n, index, seed: RandomSampler(n, seed),
    "shard_shuffle": lambda n, index, seed: ShardShuffleSampler(
        n, seed, window=2, shard_records=7
    ),
    "token_budget": lambda n, index, seed: TokenBudgetSampler(n, index, seed, 8, max_tokens=300),
    "torch": lambda n, index, seed: TorchSampler(n, seed, target=TORCH.RandomSampler),
    "torch of some": lambda n, index, seed: TorchSampler(
        n, seed, target=TORCH.SubsetRandomSampler, args={"indices": list(range(20, 50))}
    ),
    "weighted": lambda n, index, seed: WeightedSampler(n, index, seed),
    "weighted by class": lambda n, index, seed: WeightedSampler(
        n, index, seed, weights={"ant": 1, "bee": 2.5, 2: 0.5}, num_samples=60
    ),
    "weighted without replacement": lambda n, index, seed: WeightedSampler(
        n, index, seed, weights="size", replacement=False
    ),
}  # fmt: skip
HASHES = {
    "balanced_batch": "1bffe2fe",
    "balanced_batch of some": "8568edf8",
    "identity": "838c1dd6",
    "infinite": "f4f5249d",
    "length_bucket": "fe0a004f",
    "packed": "201c7269",
    "random": "201c7269",
    "shard_shuffle": "f80e5bc8",
    "token_budget": "90318868",
    "torch": "ac113a85",
    "torch of some": "cd723926",
    "weighted": "b4f9fa00",
    "weighted by class": "f80cb097",
    "weighted without replacement": "1341a91d",
}
REPEATING = ("balanced_batch", "identity", "infinite", "some", "weighted", "class")


@pytest.mark.parametrize("name", MADE)
def test_contract(name):
    once = not name.endswith(REPEATING)
    check_sampler(MADE[name](N, INDEX, 5), n=N, shuffles=True, exactly_once=once)


@pytest.mark.parametrize("n", [1, 5, 53])
@pytest.mark.parametrize("name", ["length_bucket", "packed", "random", "shard_shuffle",
                                  "token_budget", "torch"])  # fmt: skip
def test_contract_for_few_records(name, n):
    index = Table([f"{i}" for i in range(n)], {"length": COLUMNS["length"][:n]})
    check_sampler(MADE[name](n, index, 5), n=n, shuffles=n > 1, exactly_once=True)


@pytest.mark.parametrize("name", MADE)
def test_a_seed_has_the_same_order_for_ever(name):
    """A changed hash breaks the resume of every run that was started before."""
    orders = [MADE[name](N, INDEX, seed).indices(4, 0, 24) for seed in (1, 2, 1)]
    assert np.array_equal(orders[0], orders[2]) and not np.array_equal(orders[0], orders[1])
    assert hashlib.blake2b(orders[0].tobytes(), digest_size=4).hexdigest() == HASHES[name]


@pytest.mark.parametrize("make", [SequentialSampler, make_inference_sampler])
def test_all_records_in_order(make):
    check_sampler(make(53), n=53, shuffles=False, exactly_once=True)
    assert make(53).indices(3, 10, 14).tolist() == [10, 11, 12, 13]


def test_a_count_of_records_is_spread_over_all():
    assert SequentialSampler(100, count=4).indices(0, 0, 4).tolist() == [0, 25, 50, 75]
    assert len(SequentialSampler(3, count=4)) == 3


def fits(counts: np.ndarray, expected: np.ndarray) -> bool:
    """Chi-square test at 1 in 10,000; the seeds are fixed, so it passes or fails for ever."""
    statistic = ((counts - expected) ** 2 / expected).sum()
    return bool(chi2.sf(statistic, counts.size - 1) > 1e-4)
