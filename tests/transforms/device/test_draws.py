"""Numbers drawn by position: uniform, independent, and beta where that is asked for."""

import itertools

import numpy as np
import pytest
import torch
from scipy import stats

from penstock.core.rng import batch_key
from penstock.transforms.device.draws import symmetric_beta, uniforms

ROWS = {"epoch": torch.full((20_000,), 3), "position": torch.arange(20_000)}
KEY = batch_key(5, "step")


def test_every_number_is_uniform_and_none_follows_from_another():
    draws = uniforms(ROWS, KEY, 7)
    assert draws.shape == (7, 20_000) and draws.dtype == np.float32
    assert 0 < draws.min() and draws.max() < 1
    for draw in draws:
        assert stats.kstest(draw, "uniform").pvalue > 1e-4
    others = uniforms({**ROWS, "epoch": ROWS["epoch"] + 1}, KEY, 1)
    later = uniforms(ROWS, batch_key(5, "other"), 1)
    for a, b in itertools.combinations([*draws, draws[0][::-1], *others, *later], 2):
        assert abs(np.corrcoef(a, b)[0, 1]) < 0.036  # 5 standard deviations
    assert abs(np.corrcoef(draws[0][1:], draws[0][:-1])[0, 1]) < 0.036


def test_fewer_rows_or_numbers_are_the_same_ones():
    draws = uniforms(ROWS, KEY, 8)
    some = {name: value[100:105] for name, value in ROWS.items()}
    assert np.array_equal(uniforms(some, KEY, 8), draws[:, 100:105])


def test_rows_of_several_epochs_get_the_numbers_of_their_own():
    parts = [{"epoch": torch.full((9,), epoch), "position": torch.arange(9)} for epoch in (3, 4)]
    both = {name: torch.cat([part[name] for part in parts]) for name in ("epoch", "position")}
    expected = np.concatenate([uniforms(part, KEY, 4) for part in parts], axis=1)
    assert np.array_equal(uniforms(both, KEY, 4), expected)


@pytest.mark.parametrize("alpha", [0.2, 0.4, 1.0, 3.0, 32.0])
def test_beta_draws_are_distributed_as_they_say(alpha):
    first, second = uniforms(ROWS, KEY, 2)
    assert (
        stats.kstest(symmetric_beta(first, second, alpha), stats.beta(alpha, alpha).cdf).pvalue
        > 1e-4
    )


@pytest.mark.parametrize("alpha", [0.05, 1000.0])
def test_the_extremes_are_numbers(alpha):
    edge = np.array([2.0**-24, 1 - 2.0**-24], np.float32)
    for first, second in itertools.product(edge, edge):
        beta = symmetric_beta(np.array([first]), np.array([second]), alpha)
        assert 0 <= beta[0] <= 1
