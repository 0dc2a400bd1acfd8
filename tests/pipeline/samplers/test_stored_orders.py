"""Orders that are computed once per machine: whatever decides one decides which file it is."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from penstock.datasets.records.table import Table
from penstock.pipeline.samplers.balanced_batch import BalancedBatchSampler
from penstock.pipeline.samplers.identity import IdentitySampler
from penstock.pipeline.samplers.length_bucket import LengthBucketSampler
from penstock.pipeline.samplers.token_budget import TokenBudgetSampler
from penstock.pipeline.samplers.torch import TorchSampler
from penstock.pipeline.samplers.weighted import WeightedSampler

N = 96
INDEX = Table(
    [f"{i}" for i in range(N)],
    {
        "label": np.arange(N) % 12,
        "length": np.random.default_rng(1).integers(1, 90, N),
        "size": np.arange(N) + 1.0,
    },
)
MADE = {
    "balanced_batch": lambda seed: BalancedBatchSampler(N, INDEX, seed, batch_size=24),
    "identity": lambda seed: IdentitySampler(N, INDEX, seed, batch_size=16),
    "length_bucket": lambda seed: LengthBucketSampler(N, INDEX, seed, 8, window=3),
    "token_budget": lambda seed: TokenBudgetSampler(N, INDEX, seed, 8, max_tokens=300),
    "torch": lambda seed: TorchSampler(N, INDEX, seed, target=torch.utils.data.RandomSampler),
    "weighted": lambda seed: WeightedSampler(N, INDEX, seed, weights="size", replacement=False),
    "windows of length_bucket": lambda window: LengthBucketSampler(N, INDEX, 5, 8, window=window),
}


@pytest.mark.parametrize("made", MADE.values(), ids=MADE.keys())
def test_another_seed_or_window_is_another_order_of_the_same_epoch(made):
    orders = [made(number).indices(4, 0, 48).tolist() for number in (1, 2, 1)]
    assert orders[0] == orders[2] != orders[1]
