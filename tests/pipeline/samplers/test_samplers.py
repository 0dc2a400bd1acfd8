"""Sequential, random, weighted and torch's samplers: pure, and statistically right."""

from __future__ import annotations

import pickle
import tracemalloc

import numpy as np
import pytest
import torch
from scipy.stats import chi2

from penstock.core import rng
from penstock.pipeline.samplers.random import RandomSampler
from penstock.pipeline.samplers.sequential import SequentialSampler
from penstock.pipeline.samplers.torch import TorchSampler
from penstock.pipeline.samplers.weighted import WeightedSampler
from tests.contracts.sampler import check_sampler
from tests.pipeline.loader.fakes import FakeIndex

LABELS = np.array([0] * 70 + [1] * 20 + [2] * 10)
INDEX = FakeIndex(LABELS, ("ant", "bee", "cat"))


def fits(counts: np.ndarray, expected: np.ndarray) -> bool:
    """Chi-square test at 1 in 10,000; the seeds are fixed, so it passes or fails for ever."""
    statistic = ((counts - expected) ** 2 / expected).sum()
    return chi2.sf(statistic, counts.size - 1) > 1e-4


@pytest.mark.parametrize("n", [1, 53, 65_536, 65_537, 100_003])
def test_random_is_a_permutation(n):
    check_sampler(RandomSampler(n, seed=3), n=n, shuffles=n > 1, exactly_once=True)


def test_sequential():
    check_sampler(SequentialSampler(53), n=53, shuffles=False, exactly_once=True)


@pytest.mark.parametrize("replacement", [True, False])
@pytest.mark.parametrize("weights", ["balanced", {"ant": 1, "bee": 2.5, 2: 0.5}, "size"])
def test_weighted(weights, replacement):
    sampler = WeightedSampler(100, INDEX, 7, weights=weights, replacement=replacement)
    check_sampler(sampler, n=100, shuffles=True, exactly_once=not replacement)


@pytest.mark.parametrize(
    ("target", "args", "exactly_once"),
    [
        (torch.utils.data.RandomSampler, {}, True),
        ("torch.utils.data.RandomSampler", {"replacement": True, "num_samples": 40}, False),
        (torch.utils.data.WeightedRandomSampler,
         {"weights": [1.0] * 50 + [3.0] * 50, "num_samples": 60}, False),
        (torch.utils.data.SubsetRandomSampler, {"indices": list(range(20, 50))}, False),
    ],
)  # fmt: skip
def test_torch_samplers(target, args, exactly_once):
    sampler = TorchSampler(100, INDEX, 7, target=target, args=args)
    check_sampler(sampler, n=100, shuffles=True, exactly_once=exactly_once)


class GlobalSampler(torch.utils.data.Sampler):
    """As users write them: drawing from global state, knowing the labels."""

    def __init__(self, labels):
        self.labels = labels

    def __len__(self):
        return len(self.labels)

    def __iter__(self):
        return iter(np.random.permutation(len(self.labels)))


class Words(torch.utils.data.Sampler):
    def __len__(self):
        return 10

    def __iter__(self):
        return iter([["a", "b"]] * 10)


def test_a_torch_sampler_that_draws_from_global_state_is_reproducible():
    sampler = TorchSampler(100, INDEX, 7, target=GlobalSampler)
    check_sampler(sampler, n=100, shuffles=True, exactly_once=True)


@pytest.mark.parametrize(
    ("target", "args", "message"),
    [
        (torch.utils.data.DistributedSampler, {}, "splits the data over ranks"),
        ("torch.utils.data.Nothing", {}, "no class"),
        (Words, {}, "Words .*record indices"),
        (torch.utils.data.SubsetRandomSampler, {"indices": [5, 300]}, "yielded index 300"),
        (torch.utils.data.RandomSampler, {"replcement": True}, r"takes \(.*'replcement'"),
    ],
)
def test_torch_samplers_that_cannot_work_are_refused(target, args, message):
    with pytest.raises(ValueError, match=message):
        TorchSampler(100, INDEX, 0, target=target, args=args).indices(0, 0, 2)


@pytest.mark.parametrize("n", [11, 70_001])
def test_random_is_uniform_by_position_and_by_pair(n, monkeypatch):
    if n == 11:
        monkeypatch.setattr(rng, "SMALL", 4)  # the network, on a set that can be counted
    epochs = 6_000 if n == 11 else 40
    counts, pairs = np.zeros((11, 11)), np.zeros((11, 11))
    bins = max(1, n // 10)
    for epoch in range(epochs):
        order = RandomSampler(n, seed=5).indices(epoch, 0, n)
        cells = order if n == 11 else np.minimum(order // bins, 10)
        place = np.minimum(np.arange(n) // (1 if n == 11 else bins), 10)
        np.add.at(counts, (place, cells), 1)
        np.add.at(pairs, (cells[:-1], cells[1:]), 1)
    if n == 11:
        assert fits(counts.ravel(), np.full(121, epochs / 11))
        off = ~np.eye(11, dtype=bool)
        assert np.diag(pairs).sum() == 0
        assert fits(pairs[off], np.full(110, epochs * 10 / 110))
    else:
        sizes = np.bincount(np.minimum(np.arange(n) // bins, 10), minlength=11).astype(float)
        expected = np.outer(sizes, sizes) / n * epochs
        assert fits(counts[:10, :10].ravel(), expected[:10, :10].ravel())
        assert fits(pairs[:10, :10].ravel(), expected[:10, :10].ravel())


def test_random_is_no_more_regular_than_torchs():
    """Serial correlation of neighbours, next to torch.randperm's."""
    n = 200_003
    own = RandomSampler(n, seed=1).indices(0, 0, n)
    theirs = torch.randperm(n, generator=torch.Generator().manual_seed(1)).numpy()
    for order in (own, theirs):
        for lag in (1, 2, 3, 64):
            assert abs(np.corrcoef(order[:-lag], order[lag:])[0, 1]) < 4 / np.sqrt(n)
        steps = np.abs(np.diff(order))
        assert fits(np.histogram(steps, bins=20, range=(0, n))[0], _step_sizes(n, 20))


def _step_sizes(n: int, bins: int) -> np.ndarray:
    edges = np.linspace(0, 1, bins + 1)
    return (n - 1) * np.diff(2 * edges - edges**2)


@pytest.mark.parametrize("n", [10**9, 10**12])
def test_a_billion_positions_start_at_once(n):
    """To go through a million of millions would take longer than a test may."""
    sampler = RandomSampler(n, seed=1)
    tracemalloc.start()
    first = sampler.indices(0, 0, 256)
    last = sampler.indices(0, n - 256, n)
    peak_bytes = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak_bytes < 1 << 20
    assert np.unique(np.concatenate([first, last])).size == 512
    assert np.concatenate([first, last]).max() > n // 2


def test_weighted_draws_follow_the_weights_like_torchs():
    weights = np.array([0.0, 1, 2, 3, 0, 4, 10])
    draws = 70_000
    path_counts = _draw_counts(weights, draws)
    theirs = torch.multinomial(
        torch.tensor(weights), draws, True, generator=torch.Generator().manual_seed(1)
    )
    expected = weights / weights.sum() * draws
    some = weights > 0
    for counts in (path_counts, np.bincount(theirs.numpy(), minlength=7)):
        assert counts[~some].sum() == 0
        assert fits(counts[some], expected[some])


def _draw_counts(weights: np.ndarray, draws: int) -> np.ndarray:
    index = FakeIndex(np.zeros(weights.size))
    index._columns["weight"] = weights
    sampler = WeightedSampler(weights.size, index, 3, weights="weight", num_samples=draws)
    order = sampler.indices(0, 0, draws)
    pairs = np.zeros((7, 7))
    np.add.at(pairs, (order[:-1], order[1:]), 1)
    share = weights / weights.sum()
    expected = np.outer(share, share) * (draws - 1)
    assert fits(pairs[expected > 0], expected[expected > 0])
    return np.bincount(order, minlength=weights.size)


def test_balanced_draws_every_class_equally_often():
    sampler = WeightedSampler(100, INDEX, 1, num_samples=30_000)
    counts = np.bincount(LABELS[sampler.indices(0, 0, 30_000)])
    assert fits(counts, np.full(3, 10_000.0))


def test_without_replacement_the_first_draw_follows_the_weights():
    weights = np.array([1.0, 2, 3, 4])
    index = FakeIndex(np.zeros(4))
    index._columns["weight"] = weights
    sampler = WeightedSampler(4, index, 3, weights="weight", replacement=False)
    orders_ = np.stack([sampler._weighted_order(epoch) for epoch in range(4_000)])
    assert fits(np.bincount(orders_[:, 0]), weights / 10 * 4_000)
    second = np.bincount(orders_[orders_[:, 0] == 3, 1], minlength=4)[:3]
    assert fits(second, weights[:3] / 6 * second.sum())


def test_more_than_2_to_the_24_weights(tmp_path):
    n = (1 << 24) + 10
    weights = np.zeros(n)
    weights[-10:] = 1
    weights[5] = 10
    np.save(tmp_path / "w.npy", weights)
    sampler = WeightedSampler(n, None, 1, weights=str(tmp_path / "w.npy"), num_samples=4_000)
    drawn, counts = np.unique(sampler.indices(0, 0, 4_000), return_counts=True)
    assert drawn.tolist() == [5, *range(n - 10, n)]
    assert fits(counts, np.array([2_000.0] + [200.0] * 10))
    assert len(pickle.dumps(sampler)) < 1_000


def test_weights_from_files(tmp_path):
    weights = np.arange(100) + 0.5
    np.save(tmp_path / "w.npy", weights)
    (tmp_path / "plain.csv").write_text("\n".join(map(str, weights)))
    (tmp_path / "rows.csv").write_text("weight\n" + "\n".join(map(str, weights)))
    keys = INDEX.keys(np.arange(100))
    lines = [f"{weight},{key}" for weight, key in zip(weights, keys, strict=True)]
    (tmp_path / "keys.csv").write_text("\n".join(["weight,key", *lines[::-1]]))
    made = [
        WeightedSampler(100, INDEX, 1, weights=str(tmp_path / name)).indices(0, 0, 100)
        for name in ("w.npy", "plain.csv", "rows.csv", "keys.csv")
    ]
    assert all(np.array_equal(made[0], other) for other in made[1:])


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ([1, -2, 3], r"row 1 \(img/0000001.jpg\) has weight -2"),
        ([1, 2, np.nan], r"row 2 .* has weight nan"),
        ([0, 0, 0], r"all 3 weights, rows 0 to 2, are zero"),
        ([1, 2], "has 2 weights .*, the data 3 records"),
    ],
)
def test_weights_that_make_no_sense_are_refused(values, message):
    index = FakeIndex(np.zeros(3))
    index._columns["weight"] = np.array(values, np.float64)
    with pytest.raises(ValueError, match=message):
        WeightedSampler(3, index, weights="weight")


def test_weighted_arguments_that_make_no_sense_are_refused(tmp_path):
    with pytest.raises(ValueError, match=r"num_samples 71 .*only 70 of 100"):
        WeightedSampler(100, INDEX, weights={"bee": 0, "cat": 0}, replacement=False, num_samples=71)
    with pytest.raises(ValueError, match=r"no class 'dog'; classes: ant, bee, cat"):
        WeightedSampler(100, INDEX, weights={"dog": 1})
    with pytest.raises(ValueError, match=r"no column of numbers 'weigth' .* index: label, size"):
        WeightedSampler(100, INDEX, weights="weigth")
    with pytest.raises(ValueError, match="no file"):
        WeightedSampler(100, INDEX, weights=str(tmp_path / "none.csv"))


def test_zero_weights_are_left_out_without_replacement():
    sampler = WeightedSampler(100, INDEX, weights={"bee": 0}, replacement=False)
    assert len(sampler) == 80
    assert not (LABELS[sampler.indices(0, 0, 80)] == 1).any()
