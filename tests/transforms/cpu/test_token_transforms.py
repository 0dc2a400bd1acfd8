"""Transforms of sequences: what is drawn follows from the rng, and nothing else changes."""

from __future__ import annotations

import numpy as np
import pytest

from penstock.transforms.cpu.tokens import token_crop, token_dropout, token_mask


def rng(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


def sample(length: int = 50) -> dict:
    tokens = np.arange(1, length + 1)
    return {"tokens": tokens, "features": np.stack([tokens, -tokens], 1), "label": 3}


def test_a_crop_is_any_part_and_of_all_fields_the_same():
    given, starts = sample(), set()
    for seed in range(300):
        cut = token_crop(given, rng(seed), max_length=47, fields=["tokens", "features"])
        start = int(cut["tokens"][0])
        starts.add(start)
        assert cut["tokens"].tolist() == list(range(start, start + 47))
        assert np.array_equal(cut["features"][:, 0], cut["tokens"])
        assert cut["label"] == 3
    assert starts == {1, 2, 3, 4}
    assert token_crop(given, rng(), max_length=50)["tokens"] is given["tokens"]
    assert token_crop(given, rng(7), max_length=9, random=False)["tokens"].tolist() == [
        *range(1, 10)
    ]


def test_later_draws_do_not_depend_on_the_length():
    states = []
    for length in (5, 500):
        generator = rng()
        token_crop(sample(length), generator, max_length=50)
        states.append(generator.random())
    assert states[0] == states[1]


def test_masking_hides_a_share_and_leaves_the_sample_alone():
    given = sample(5000)
    hidden = token_mask(given, rng(), p=0.2, value=-1)["tokens"]
    share = (hidden == -1).mean()
    assert 0.17 < share < 0.23
    assert np.array_equal(hidden[hidden != -1], given["tokens"][hidden != -1])
    assert given["tokens"].min() == 1
    assert np.array_equal(token_mask(given, rng(), p=0.2, value=-1)["tokens"], hidden)
    rows = token_mask(given, rng(), p=0.2, field="features")["features"]
    assert np.array_equal((rows == 0).all(1), hidden == -1), "whole elements"


def test_dropout_keeps_the_order_and_one_at_least():
    given = sample(5000)
    kept = token_dropout(given, rng(), p=0.2)["tokens"]
    assert 0.77 < len(kept) / 5000 < 0.83 and (np.diff(kept) > 0).all()
    for seed in range(20):
        assert len(token_dropout(sample(4), rng(seed), p=1)["tokens"]) == 1
    assert len(token_dropout({"tokens": np.zeros(0)}, rng(), p=1)["tokens"]) == 0


def test_what_is_no_sequence_is_named():
    with pytest.raises(ValueError, match="token_crop: 'words' given"):
        token_crop(sample(), rng(), max_length=3, fields=["words"])
    with pytest.raises(ValueError, match=r"differ in length: \{'tokens': 4, 'other': 3\}"):
        token_crop({"tokens": np.zeros(4), "other": np.zeros(3)}, rng(), max_length=2,
                   fields=["tokens", "other"])  # fmt: skip
    for transform in (token_mask, token_dropout):
        with pytest.raises(ValueError, match="'label' given"):
            transform(sample(), rng(), field="label")
