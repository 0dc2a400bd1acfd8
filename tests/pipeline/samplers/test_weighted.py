"""Draws by weight at their ends: the largest random word, many records, many weights by key."""

from __future__ import annotations

import numpy as np

from penstock.pipeline.samplers import weighted
from penstock.pipeline.samplers.weighted import WeightedSampler
from tests.pipeline.loader.fakes import FakeIndex


def index_of(weights: np.ndarray) -> FakeIndex:
    index = FakeIndex(np.zeros(weights.size))
    index._columns["weight"] = weights
    return index


def test_the_largest_word_is_the_last_record_that_weighs_something(monkeypatch):
    sampler = WeightedSampler(4, index_of(np.array([1.0, 2, 3, 0])), weights="weight")
    largest = np.full((2, 4), 2**64 - 1, np.uint64)
    monkeypatch.setattr(weighted, "philox_words", lambda *_: largest)
    assert sampler.indices(0, 0, 2).tolist() == [2, 2]


def test_an_order_does_not_depend_on_how_it_is_cut_for_computing(monkeypatch):
    sampler = WeightedSampler(
        100, index_of(np.arange(100) + 1.0), weights="weight", replacement=False
    )
    whole = sampler._order(3)
    monkeypatch.setattr(weighted, "_CHUNK", 7)
    assert np.array_equal(sampler._order(3), whole)


def test_weights_by_key_of_many_records_are_those_of_a_column(tmp_path):
    index = index_of(np.arange(70_000) + 1.0)
    keys = index.keys(np.arange(70_000))
    lines = [f"{key},{row}" for row, key in enumerate(keys, 1)]
    (tmp_path / "weights.csv").write_text("\n".join(["key,weight", *lines]))
    by_key, by_column = (
        WeightedSampler(70_000, index, weights=weights)
        for weights in (str(tmp_path / "weights.csv"), "weight")
    )
    assert by_key.fingerprint() == by_column.fingerprint()
