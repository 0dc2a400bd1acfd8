"""Epochs, ranks, resume, streams, and nothing global touched."""

from __future__ import annotations

import pytest

from penstock.pipeline.samplers.random import RandomSampler
from tests.pipeline.loader.fakes import FakeDataset, digests, make_loader

N = 53


def test_the_end_of_an_epoch_is_a_state():
    dataset = FakeDataset(N)
    epochs = [digests(_at(dataset, epoch)) for epoch in range(3)]
    loader = make_loader(dataset, RandomSampler(N))
    assert digests(loader) == epochs[0] and loader.epoch == 0
    done = loader.state_dict()
    assert digests(loader) == epochs[1] and loader.epoch == 1
    resumed = make_loader(dataset, RandomSampler(N))
    resumed.load_state_dict(done)
    assert digests(resumed) == epochs[1], "after a finished epoch comes the next"
    resumed.load_state_dict(done)
    resumed.set_epoch(0)
    assert digests(resumed) == [], "nothing is left of epoch 0"
    assert digests(resumed) == epochs[1]
    resumed.load_state_dict(done)
    resumed.set_epoch(2)
    assert digests(resumed) == epochs[2]


def _at(dataset, epoch):
    loader = make_loader(dataset, RandomSampler(N))
    loader.set_epoch(epoch)
    return loader


def test_set_epoch_keeps_a_loaded_place_and_restarts_any_other():
    dataset = FakeDataset(N)
    first = digests(_at(dataset, 1))
    loader = _at(dataset, 1)
    iterator = iter(loader)
    next(iterator)
    state = loader.state_dict()
    loader.set_epoch(1)
    assert digests(loader) == first
    loader.load_state_dict(state)
    loader.set_epoch(1)
    assert digests(loader) == first[1:]
    loader.set_epoch(1)
    assert digests(loader) == first


STATES = [None, "x", {}, {"epoch": "a"}, {"epoch": -1}, {"next_batch": 0.5}, {"quarantined": ["a"]}]


@pytest.mark.parametrize("given", STATES)
def test_what_is_no_state_is_refused(given):
    loader = make_loader(FakeDataset(N))
    state = {**loader.state_dict(), **given} if isinstance(given, dict) and given else given
    for anyway in (False, True):
        with pytest.raises(ValueError, match=r"^loader state: .* given, expected what state_dict"):
            loader.load_state_dict(state, anyway=anyway)
    assert loader.state_dict()["epoch"] == 0


@pytest.mark.parametrize("epoch", ["a", None, 1.5, -1, 1 << 70])
def test_what_is_no_epoch_is_refused(epoch):
    for split in ("train", "val"):
        with pytest.raises(ValueError, match=r"epoch .* given, expected a whole number from 0 on"):
            make_loader(FakeDataset(N), split=split).set_epoch(epoch)


def test_zero_batches_say_what_to_do():
    with pytest.raises(ValueError, match=r"0 batches: 5 samples.*loader.batch_size"):
        make_loader(FakeDataset(5), drop_last=True)
    assert digests(make_loader(FakeDataset(0), split="val")) == []
