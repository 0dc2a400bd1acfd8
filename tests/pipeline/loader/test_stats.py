"""Where the time went, as the loader tells it."""

from __future__ import annotations

import json
import time

import pytest
import torch

from penstock.core.stage_times import StageTimes
from penstock.pipeline.loader import stats as module
from penstock.pipeline.loader.contract import Delivery
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
    return Delivery(number, {}, samples=samples, times=StageTimes(1.0, 2.0, 3.0, 4.0))


def run_batches(stats: LoaderStats, clock, count: int) -> None:
    stats.begin()
    for number in range(count):
        clock.now += 0.25  # the loader
        stats.add(delivery(number))
        clock.now += 0.75  # the consumer
        stats.asked()


def test_waiting_and_the_consumers_own_time_make_up_all_of_it(clock):
    stats = LoaderStats()
    run_batches(stats, clock, 8)
    assert stats.times == LoaderTimes(8, 32, 8.0, 16.0, 24.0, 32.0, 2.0, 0.0, 6.0)
    assert stats.times.wait_share == 0.25
    assert stats.times.stages_us == {"read": 0.25e6, "decode": 0.5e6, "transform": 0.75e6,
                                     "collate": 1e6}  # fmt: skip


def test_what_passes_between_two_iterations_is_nobodys(clock):
    stats = LoaderStats()
    run_batches(stats, clock, 1)
    clock.now += 1000
    run_batches(stats, clock, 1)
    assert stats.times.wait == 0.5 and stats.times.consumer == 1.5


def test_a_difference_is_the_time_between(clock):
    stats = LoaderStats()
    run_batches(stats, clock, 3)
    before = stats.times
    run_batches(stats, clock, 2)
    assert stats.times - before == LoaderTimes(2, 8, 2.0, 4.0, 6.0, 8.0, 0.5, 0.0, 1.5)


def test_the_recent_batches_are_the_last_hundred(clock):
    stats = LoaderStats()
    run_batches(stats, clock, 30)
    assert stats.recent[:6] == stats.times[:6]
    run_batches(stats, clock, 300)
    assert stats.recent.batches == module.RECENT_BATCHES
    assert stats.recent.decode == 2.0 * module.RECENT_BATCHES


def test_a_dict_is_plain_and_a_print_shows_every_stage(clock):
    stats = LoaderStats()
    run_batches(stats, clock, 2)
    figures = json.loads(json.dumps(stats.as_dict()))
    assert figures["decode_us"] == 0.5e6 and figures["decode_ms_per_batch"] == 2000
    assert figures["wait_share"] == 0.25 and figures["bad_samples"] == 0
    for name in (*module.STAGES, "wait", "copy", "consumer", "25%"):
        assert name in str(stats)


def test_nothing_handed_out_has_no_stages():
    assert LoaderTimes().stages_us == {}
    assert LoaderStats().as_dict()["wait_share"] == 0
    assert "0 samples" in str(LoaderStats())


def test_a_loader_counts_what_it_hands_out():
    loader = make_loader(FakeDataset(20))
    for _ in loader:
        pass
    times = loader.stats.times
    assert (times.batches, times.samples) == (3, 20)
    assert times.wait > 0 and times.consumer > 0


def test_the_valid_rows_of_each_source_are_counted():
    stats = LoaderStats(drawn={"web": 0, "own": 0, "none": 0})
    sources, valid = torch.tensor([0, 1, 1, 0]), torch.tensor([True, True, False, True])
    stats.add(Delivery(0, {"source": sources, "valid": valid}, samples=3))
    stats.add(Delivery(1, None))
    stats.add(Delivery(2, {"valid": valid}, samples=3))  # a collate that leaves it out
    assert stats.drawn == {"web": 2, "own": 1, "none": 0}
    assert stats.shares == {"web": 2 / 3, "own": 1 / 3, "none": 0.0}
    assert stats.as_dict()["drawn_web"] == 2
    assert str(stats).endswith("sources: 66.7% web, 33.3% own, 0.0% none")
    assert "sources" not in str(LoaderStats())


@pytest.mark.parametrize("engine", ["threads", "processes"])
def test_batches_that_wait_for_the_consumer_are_counted(engine):
    settings = {"num_workers": 2, "prefetch_factor": 2, "across_epochs": False}
    with make_loader(FakeDataset(80), engine=engine, **settings) as loader:
        batches = iter(loader)
        next(batches)
        deadline = time.monotonic() + 60
        while loader.stats.as_dict()["ready"] < 4 and time.monotonic() < deadline:
            time.sleep(0.02)
        assert loader.stats.workers() == (2, 4, 0), "all that workers compute ahead"
        for _ in batches:
            pass
        assert loader.stats.as_dict()["ready"] == 0
    assert "ready" not in make_loader(FakeDataset(8)).stats.as_dict(), "nobody computes ahead"
