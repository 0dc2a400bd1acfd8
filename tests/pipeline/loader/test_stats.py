"""Where the time went, as the loader tells it."""

from __future__ import annotations

import time

import pytest
import torch

from penstock.pipeline.loader import stats as module
from penstock.pipeline.loader.contract import BatchStats, Delivery
from penstock.pipeline.loader.stats import LoaderStats, LoaderTimes
from tests.pipeline.loader.fakes import FakeDataset, make_loader


@pytest.fixture
def clock(monkeypatch):
    """A clock that stands still until it is moved."""

    class Clock:
        now = 100.0

        def perf_counter(self) -> float:
            return self.now

    clock = Clock()
    monkeypatch.setattr(module, "time", clock)
    return clock


def delivery(number: int, samples: int = 4) -> Delivery:
    return Delivery(number, {}, stats=BatchStats(1.0, 2.0, 3.0, 4.0, samples=samples))


def run_batches(stats: LoaderStats, clock, count: int) -> None:
    stats.begin()
    for number in range(count):
        clock.now += 0.25  # the loader
        stats.count_in(delivery(number))
        clock.now += 0.75  # the consumer
        stats.asked()


def test_waiting_and_the_consumers_own_time_make_up_all_of_it(clock):
    stats = LoaderStats()
    run_batches(stats, clock, 8)
    assert stats.times == LoaderTimes(
        8.0, 16.0, 24.0, 32.0, batches=8, samples=32, wait=2.0, consumer=6.0
    )
    assert stats.times.wait_share == 0.25
    assert stats.times.stages_us == {"read": 0.25e6, "decode": 0.5e6, "transform": 0.75e6,
                                     "collate": 1e6}  # fmt: skip


def test_a_difference_is_the_time_between(clock):
    stats = LoaderStats()
    run_batches(stats, clock, 3)
    before = stats.times
    run_batches(stats, clock, 2)
    assert stats.times - before == LoaderTimes(
        2.0, 4.0, 6.0, 8.0, batches=2, samples=8, wait=0.5, consumer=1.5
    )


def test_the_valid_rows_of_each_source_are_counted():
    stats = LoaderStats(drawn={"web": 0, "own": 0, "none": 0})
    sources, valid = torch.tensor([0, 1, 1, 0]), torch.tensor([True, True, False, True])
    stats.count_in(Delivery(0, {"source": sources, "valid": valid}))
    stats.count_in(Delivery(1, None))
    stats.count_in(Delivery(2, {"valid": valid}))  # a collate that leaves it out
    assert stats.drawn == {"web": 2, "own": 1, "none": 0}
    assert stats.shares == {"web": 2 / 3, "own": 1 / 3, "none": 0.0}
    assert str(stats).endswith("sources: 66.7% web, 33.3% own, 0.0% none")
    assert "sources" not in str(LoaderStats())


@pytest.mark.parametrize("engine", ["threads", "processes"])
def test_batches_that_wait_for_the_consumer_are_counted(engine):
    settings = {"num_workers": 2, "prefetch_factor": 2, "across_epochs": False}
    with make_loader(FakeDataset(80), engine=engine, **settings) as loader:
        batches = iter(loader)
        next(batches)
        deadline = time.monotonic() + 60
        while loader.stats.workers().ready < 4 and time.monotonic() < deadline:
            time.sleep(0.02)
        assert loader.stats.workers() == (2, 4, 0), "all that workers compute ahead"
        for _ in batches:
            pass
        assert loader.stats.workers().ready == 0
    assert make_loader(FakeDataset(8)).stats.workers is None, "nobody computes ahead"
