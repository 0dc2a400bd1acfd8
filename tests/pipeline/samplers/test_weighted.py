"""Draws by weight: they follow the weights of a class, a column or a file, at any size."""

from __future__ import annotations

import numpy as np
import pytest

from penstock.pipeline.samplers import weighted
from penstock.pipeline.samplers.weighted import WeightedSampler
from tests.pipeline.loader.fakes import FakeIndex
from tests.pipeline.samplers.test_all import fits

LABELS = np.array([0] * 70 + [1] * 20 + [2] * 10)
INDEX = FakeIndex(LABELS, ("ant", "bee", "cat"))


def index_of(weights) -> FakeIndex:
    index = FakeIndex(np.zeros(len(weights)))
    index._columns["weight"] = np.array(weights, np.float64)
    return index


def test_balanced_draws_every_class_equally_often():
    sampler = WeightedSampler(100, INDEX, 1, num_samples=30_000)
    counts = np.bincount(LABELS[sampler.indices(0, 0, 30_000)])
    assert fits(counts, np.full(3, 10_000.0))
    without = FakeIndex(np.where(LABELS == 2, -1, LABELS))
    same = WeightedSampler(100, without, 1).indices(0, 0, 100)
    np.testing.assert_array_equal(same, WeightedSampler(100, INDEX, 1).indices(0, 0, 100))


def test_draws_and_pairs_of_draws_follow_the_weights():
    weights = np.array([0.0, 1, 2, 3, 0, 4, 10])
    sampler = WeightedSampler(7, index_of(weights), 3, weights="weight", num_samples=70_000)
    order, share = sampler.indices(0, 0, 70_000), weights / weights.sum()
    pairs, expected = np.zeros((7, 7)), np.outer(share, share) * 69_999
    np.add.at(pairs, (order[:-1], order[1:]), 1)
    assert fits(pairs[expected > 0], expected[expected > 0]) and not pairs[expected == 0].any()
    sampler = WeightedSampler(7, index_of(weights), 3, weights="weight", replacement=False)
    firsts = np.array([sampler._order(epoch)[0] for epoch in range(4_000)])
    assert fits(np.bincount(firsts, minlength=7)[share > 0], share[share > 0] * 4_000)


def test_the_largest_word_is_the_last_record_that_weighs_something(monkeypatch):
    sampler = WeightedSampler(4, index_of([1.0, 2, 3, 0]), weights="weight")
    largest = np.full((2, 4), 2**64 - 1, np.uint64)
    monkeypatch.setattr(weighted, "philox_words", lambda *_: largest)
    assert sampler.indices(0, 0, 2).tolist() == [2, 2]


def test_weights_from_files_are_those_of_the_column(tmp_path):
    index = index_of(np.arange(5_000) + 0.5)
    weights = index.column("weight")
    np.save(tmp_path / "w.npy", weights)
    lines = [
        f"{weight},{key}" for weight, key in zip(weights, index.keys(np.arange(5_000)), strict=True)
    ]
    (tmp_path / "keys.csv").write_text("\n".join(["weight,key", *lines[::-1]]))
    (tmp_path / "few.csv").write_text("\n".join(["weight,key", *lines[:-1]]))
    expected = WeightedSampler(5_000, index, weights="weight").fingerprint()
    for name in ("w.npy", "keys.csv"):
        assert WeightedSampler(5_000, index, weights=str(tmp_path / name)).fingerprint() == expected
    with pytest.raises(ValueError, match="no weight for 1 of 5,000 records, such as 'img/0004999"):
        WeightedSampler(5_000, index, weights=str(tmp_path / "few.csv"))


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ([1, -2, 3], r"row 1 \(img/0000001.jpg\) has weight -2"),
        ([1, 2, np.nan], r"row 2 .* has weight nan"),
        ([0, 0, 0], "all 3 weights are zero"),
        ([1, 2], r"weights of shape \[2\], the data 3 records"),
    ],
)
def test_weights_that_make_no_sense_are_refused(values, message):
    index = FakeIndex(np.zeros(3))
    index._columns["weight"] = np.array(values, np.float64)
    with pytest.raises(ValueError, match=message):
        WeightedSampler(3, index, weights="weight")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"weights": {"bee": 0, "cat": 0}, "replacement": False, "num_samples": 71},
         "num_samples 71, but only 70 of 100"),
        ({"weights": {"dog": 1}}, "sampler.weights: no class 'dog'; classes: ant, bee, cat"),
        ({"weights": "weigth"}, r"no column of numbers 'weigth' .* index: label, size"),
        ({"weights": "/none.csv"}, "no file"),
    ],
)  # fmt: skip
def test_arguments_that_make_no_sense_are_refused(arguments, message):
    with pytest.raises(ValueError, match=message):
        WeightedSampler(100, INDEX, **arguments)
