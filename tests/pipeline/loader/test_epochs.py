"""Workers go on over an epoch's end; what they computed for the next one is only ever that."""

from __future__ import annotations

import time
import weakref
from itertools import islice

import numpy as np
import pytest

from penstock.pipeline.samplers.random import RandomSampler
from tests.pipeline.loader.fakes import FakeDataset, digest, digests, make_loader
from tests.waiting import wait_until_let_go

N, BATCHES = 40, 5
AHEAD = 4  # batches that two workers compute ahead
THREADS = {"engine": "threads", "num_workers": 2}
WAYS = pytest.mark.parametrize(
    "settings",
    [
        {"engine": "inline"},
        THREADS,
        {**THREADS, "engine": None},
        {**THREADS, "engine": "processes"},
        {"engine": "torch", "num_workers": 2},
    ],
    ids=["inline", "threads", "default", "process", "torch"],
)


class Noted(FakeDataset):
    """Notes the epoch and the first position of every batch that is begun."""

    def __init__(self, n: int, **settings: object) -> None:
        super().__init__(n, **settings)
        self.begun: list[tuple[int, int]] = []

    def fetch(self, indices, positions, epoch):
        self.begun.append((epoch, int(positions[0]) // 8))
        return super().fetch(indices, positions, epoch)


def loader_of(dataset, **settings):
    return make_loader(dataset, RandomSampler(len(dataset), seed=4), **settings)


def expected(epoch: int) -> list[str]:
    loader = loader_of(FakeDataset(N), across_epochs=False)
    loader.set_epoch(epoch)
    return digests(loader)


def begun_after_rest(dataset: Noted, count: int) -> list[tuple[int, int]]:
    """What was begun, when `count` batches were and some time has passed."""
    deadline = time.monotonic() + 120
    while len(dataset.begun) < count and time.monotonic() < deadline:
        time.sleep(0.002)
    time.sleep(0.05)
    return sorted(dataset.begun)


def test_the_next_epoch_is_begun_once_and_no_further_than_others_are_computed_ahead():
    dataset = Noted(N)
    with loader_of(dataset, **THREADS) as loader:
        for epoch in range(3):
            assert digests(loader) == expected(epoch)
            whole = [(done, number) for done in range(epoch + 1) for number in range(BATCHES)]
            coming = [(epoch + 1, number) for number in range(AHEAD)]
            assert begun_after_rest(dataset, len(whole + coming)) == whole + coming


@pytest.mark.parametrize(
    "settings",
    [
        {"across_epochs": False},
        {"persistent_workers": False},
        {"split": "val"},
    ],
    ids=["as asked", "workers end", "evaluation"],
)
def test_it_is_not(settings):
    dataset = Noted(N)
    with loader_of(dataset, **THREADS, **settings) as loader:
        for _ in loader:
            pass
        assert begun_after_rest(dataset, BATCHES) == [(0, number) for number in range(BATCHES)]


@WAYS
def test_epochs_in_a_row_and_out_of_it(settings):
    with loader_of(FakeDataset(N), **settings) as loader:
        assert digests(loader) == expected(0)
        assert digests(loader) == expected(1)
        loader.set_epoch(7)
        assert digests(loader) == expected(7), "another epoch than the next"
        loader.set_epoch(7)
        assert digests(loader) == expected(7), "the same epoch again"
        assert digests(loader) == expected(8)
        broken_off = [digest(batch) for batch in islice(loader, 2)]
        assert broken_off == expected(9)[:2]
        assert digests(loader) == expected(9), "broken off: again from its beginning"


def test_the_epoch_after_a_resumed_one_begins_at_its_beginning():
    with loader_of(FakeDataset(N), **THREADS) as loader:
        assert digests(loader) == expected(0)
        loader.load_state_dict({**loader.state_dict(), "next_batch": 3, "finished": False})
        assert digests(loader) == expected(0)[3:]
        assert digests(loader) == expected(1)


def test_a_loaded_quarantine_holds_for_what_was_computed_ahead():
    with loader_of(FakeDataset(N), **THREADS) as loader:
        assert digests(loader) == expected(0)
        loader.load_state_dict({**loader.state_dict(), "quarantined": [3]})
        assert 3 not in [index for batch in loader for index in batch["index"].tolist()]


@WAYS
def test_an_epoch_set_in_the_middle_of_another_is_the_next(settings):
    with loader_of(FakeDataset(N), **settings) as loader:
        for _ in loader:
            loader.set_epoch(5)
        loader.set_epoch(6)
        assert digests(loader) == expected(6)


def test_a_bad_sample_is_told_in_its_own_epoch():
    """Position 2 of epoch 1 is bad, and computed while epoch 0 is the one that is iterated."""
    bad = int(RandomSampler(N, seed=4).indices(1, 2, 3)[0])
    place = int(np.flatnonzero(RandomSampler(N, seed=4).indices(0, 0, N) == bad)[0])
    dataset = Noted(N, bad=[bad])
    with loader_of(dataset, **THREADS, on_error="skip", max_error_rate=1) as loader:
        for _ in islice(loader, place // 8):
            pass
        dataset.begun.clear()
        loader.set_epoch(0)
        for _ in loader:
            pass
        begun_after_rest(dataset, BATCHES + AHEAD)
        assert loader.stats.bad_samples == 1
        next(iter(loader))
        assert loader.stats.bad_samples == 2


def test_an_error_is_raised_in_its_own_epoch():
    class Fails(Noted):
        def fetch(self, indices, positions, epoch):
            samples = super().fetch(indices, positions, epoch)
            if (epoch, int(positions[0])) == (1, 8):
                raise OSError("the disk is gone")
            return samples

    dataset = Fails(N)
    with loader_of(dataset, **THREADS) as loader:
        assert digests(loader) == expected(0)
        begun_after_rest(dataset, BATCHES + AHEAD)
        batches = iter(loader)
        assert digest(next(batches)) == expected(1)[0]
        with pytest.raises(OSError, match="the disk is gone"):
            next(batches)
        loader.set_epoch(2)
        assert digests(loader) == expected(2), "and the loader goes on"


def test_no_batch_of_the_epoch_that_ended_is_kept():
    with loader_of(FakeDataset(N), **THREADS) as loader:
        wait_until_let_go([weakref.ref(batch["image"]) for batch in loader])
