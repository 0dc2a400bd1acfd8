"""Stored orders and tables: made once per machine, and there for as long as they are used."""

from __future__ import annotations

import multiprocessing
import os
import sys
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from penstock.pipeline.epoch_orders import StoredOrderSampler
from penstock.pipeline.samplers.weighted import WeightedSampler
from tests.pipeline.loader.fakes import FakeIndex

INDEX = FakeIndex(np.zeros(500))


class Rolled(StoredOrderSampler):
    """The records, shifted by the epoch."""

    def __init__(self, length: int = 10, name: str = "") -> None:
        super().__init__(None, length, 0, name=name)

    def _order(self, epoch):
        return np.roll(np.arange(self._length), epoch)


@pytest.fixture
def cache(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path / "penstock" / "computed"


@pytest.fixture
def weights(tmp_path):
    np.save(tmp_path / "weights.npy", np.random.default_rng(0).random(500))
    return str(tmp_path / "weights.npy")


def test_old_orders_go_and_damaged_ones_are_made_again(cache):
    cache.mkdir(parents=True)
    for name in ("mine.npy", "table-old-1.npy"):
        (cache / name).write_text("not of ours, or not used for a month")
        os.utime(cache / name, (0, 0))
    sampler = Rolled()
    for epoch in range(5):
        sampler.indices(epoch, 0, 10)
    left = sorted(path.name for path in cache.glob("*.npy"))
    assert [name.rpartition("-")[2] for name in left] == ["mine.npy", "3.npy", "4.npy"]
    (cache / left[-1]).write_bytes(b"cut")
    assert Rolled().indices(4, 0, 10).tolist() == np.roll(np.arange(10), 4).tolist()


def _in_another_process(function, *arguments):
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        return pool.apply(function, arguments)


def _made(weights):
    return WeightedSampler(500, INDEX, weights=weights).indices(0, 0, 8).tolist()


def _another_run():
    Rolled(name=f"{os.getpid()}").indices(0, 0, 10)


def test_an_old_table_is_removed_and_a_run_keeps_the_one_that_it_opened(cache, weights):
    expected = _in_another_process(_made, weights)
    (table,) = cache.glob("table-*.npy")
    os.utime(table, (0, 0))
    _in_another_process(_another_run)
    assert not table.exists()
    sampler = WeightedSampler(500, INDEX, weights=weights)
    _in_another_process(_another_run)
    assert table.exists()
    table.unlink()  # as by a run that removes what was not opened for long
    assert sampler.indices(0, 0, 8).tolist() == expected


def _epochs(weights, first, told):
    sampler = WeightedSampler(500, INDEX, weights=weights, replacement=False)
    try:
        for epoch in range(first, first + 400):
            sampler.indices(epoch, 0, 4)
        told.put("done")
    except OSError as error:
        told.put(repr(error))


def test_runs_at_different_epochs_do_not_take_each_others_orders_away(cache, weights):
    context = multiprocessing.get_context("spawn")
    told = context.Queue()
    runs = [context.Process(target=_epochs, args=(weights, first, told)) for first in (0, 10**5)]
    for run in runs:
        run.start()
    assert [told.get(timeout=120) for _ in runs] == ["done", "done"]
    for run in runs:
        run.join()


def test_threads_ask_for_orders_at_the_same_time_and_few_files_stay_open(cache):
    samplers = [Rolled(500, f"of thread {number}") for number in range(4)]
    before = len(os.listdir("/proc/self/fd"))

    def ask(sampler):
        return [sampler.indices(number % 7, 0, 5).tolist() for number in range(200)]

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        with ThreadPoolExecutor(4) as threads:
            together = list(threads.map(ask, samplers))
    finally:
        sys.setswitchinterval(interval)
    assert together == [ask(sampler) for sampler in samplers]
    for number in range(200):
        Rolled(name=f"{number}").indices(0, 0, 10)
    assert len(os.listdir("/proc/self/fd")) < before + 100
