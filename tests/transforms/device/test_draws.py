"""Numbers drawn by position: uniform, independent, and beta-distributed."""

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


@pytest.mark.parametrize("alpha", [0.2, 0.4, 1.0, 3.0, 32.0])
def test_beta_draws_are_distributed_as_they_say(alpha):
    first, second = uniforms(ROWS, KEY, 2)
    draws, expected = symmetric_beta(first, second, alpha), stats.beta(alpha, alpha)
    assert stats.kstest(draws, expected.cdf).pvalue > 1e-4
