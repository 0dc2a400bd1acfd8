"""Words for rows of a batch: random, and shared by nobody."""

from itertools import product

import numpy as np

from penstock.core.rng import _GOLDEN, _mixed, batch_key, words_at


def words(count=4096, *, seed=3, step="crop", epoch=0, start=0):
    positions = np.arange(start, start + count)
    return words_at(batch_key(seed, step), np.full(count, epoch), positions)


def test_they_are_those_of_splitmix64():
    """Its first words from the state 0, as every other implementation gives them."""
    found = [f"{int(word) % 2**64:016x}" for word in _mixed(np.arange(1, 4) * _GOLDEN)]
    assert found == ["e220a8397b1dcdaf", "6e789e6aa1b965f4", "06c45d188009454f"]


def test_seeds_steps_and_epochs_share_nothing():
    keys = product((0, 1), ("crop", "flip", "crop2"), (0, 1, 2))
    streams = [words(seed=seed, step=step, epoch=epoch) for seed, step, epoch in keys]
    everything = np.concatenate(streams)
    assert len(set(everything.tolist())) == everything.size
    bits = np.stack([(stream >> 40 & 1).astype(float) for stream in streams])
    related = np.corrcoef(bits) - np.eye(len(streams))
    assert np.abs(related).max() < 5 / np.sqrt(bits.shape[1])


def test_every_bit_is_fair_and_free_of_its_neighbours():
    drawn = words(1 << 16)
    bits = (drawn[:, None] >> np.arange(64) & 1).astype(float)
    sigma = 0.5 / np.sqrt(len(drawn))
    assert np.abs(bits.mean(0) - 0.5).max() < 5 * sigma
    follows = (bits[1:] * bits[:-1]).mean(0) - 0.25
    assert np.abs(follows).max() < 5 * sigma
    pairs = np.corrcoef(bits.T) - np.eye(64)
    assert np.abs(pairs).max() < 5.5 / np.sqrt(len(drawn))
    counts = np.bincount(drawn >> 56 & 255, minlength=256)
    chi_squared = ((counts - 256) ** 2 / 256).sum()
    assert abs(chi_squared - 255) < 5 * np.sqrt(2 * 255)
