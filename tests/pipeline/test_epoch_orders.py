"""Stored orders and tables: made once per machine, and there for as long as they are used."""

from __future__ import annotations

import logging
import multiprocessing
import os
import pickle
import shutil
import sys
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from penstock.pipeline import epoch_orders as orders
from penstock.pipeline.samplers.weighted import WeightedSampler


@pytest.fixture
def cache(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path / "penstock" / "computed"


@pytest.fixture
def weights(tmp_path):
    np.save(tmp_path / "weights.npy", np.random.default_rng(0).random(500))
    return str(tmp_path / "weights.npy")


def _compute_order(barrier, calls):
    def compute():
        calls.put(1)
        time.sleep(0.2)
        return np.arange(1000)

    barrier.wait()
    order = orders.epoch_order("shared", 0, 1000, compute)
    calls.put(int(order[-1]))


def test_one_process_of_the_machine_computes_an_order():
    context = multiprocessing.get_context("fork")
    barrier, calls = context.Barrier(4), context.Queue()
    processes = [context.Process(target=_compute_order, args=(barrier, calls)) for _ in range(4)]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    assert sorted(calls.get() for _ in range(5)) == [1, 999, 999, 999, 999]


def test_old_orders_go_and_damaged_ones_are_made_again(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    folder = tmp_path / "penstock" / "computed"
    (folder).mkdir(parents=True)
    (folder / "mine.npy").write_text("not of ours")
    (folder / "table-old-1.npy").write_text("not used for a month")
    for name in ("mine.npy", "table-old-1.npy"):
        os.utime(folder / name, (0, 0))
    for epoch in range(5):
        orders.epoch_order("sig", epoch, 10, lambda epoch=epoch: np.full(10, epoch))
    orders.epoch_order("other", 0, 10, lambda: np.arange(10))
    left = sorted(path.name for path in folder.glob("*.npy"))
    assert left == ["mine.npy", "order-other-0-1.npy", "order-sig-3-1.npy", "order-sig-4-1.npy"]
    (folder / "order-sig-4-1.npy").write_bytes(b"cut")
    monkeypatch.setattr(orders, "_recent", {})
    again = orders.epoch_order("sig", 4, 10, lambda: np.full(10, 44))
    assert again.tolist() == [44] * 10


def test_a_long_computation_is_announced(monkeypatch, caplog):
    monkeypatch.setattr("penstock.core.machine_cache._SAY_AFTER_S", 0.05)

    def compute():
        until = time.monotonic() + 60
        while not caplog.messages and time.monotonic() < until:
            time.sleep(0.01)
        return np.arange(10)

    with caplog.at_level(logging.INFO):
        orders.epoch_order("slow", 0, 10, compute)
    assert [line.split(" ")[0] for line in caplog.messages] == ["computing", "computed"]


def _in_another_process(function, *arguments):
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        return pool.apply(function, arguments)


def _drawn(recipe, epoch):
    return pickle.loads(recipe).indices(epoch, 0, 500).tolist()


def _another_run():
    orders.epoch_order(f"another-{os.getpid()}", 0, 10, lambda: np.arange(10))


@pytest.mark.parametrize("replacement", [True, False])
def test_a_table_that_is_removed_while_it_is_used_is_there_again(cache, weights, replacement):
    sampler = WeightedSampler(500, weights=weights, replacement=replacement)
    recipe = pickle.dumps(sampler)
    expected = [_in_another_process(_drawn, recipe, epoch) for epoch in range(3)]
    shutil.rmtree(cache)
    assert sampler.indices(2, 0, 500).tolist() == expected[2]
    assert _in_another_process(_drawn, pickle.dumps(sampler), 2) == expected[2]


def _made(weights):
    return WeightedSampler(500, weights=weights).indices(0, 0, 8).tolist()


def test_a_table_in_use_is_not_taken_for_an_old_one(cache, weights):
    expected = _in_another_process(_made, weights)
    (table,) = cache.glob("table-*.npy")
    os.utime(table, (0, 0))
    _in_another_process(_another_run)
    assert not table.exists(), "the run that used it has ended"
    sampler = WeightedSampler(500, weights=weights)
    os.utime(table, (0, 0))  # the run has been going for long
    _in_another_process(_another_run)
    assert table.exists()
    assert sampler.indices(0, 0, 8).tolist() == expected


def test_a_process_that_finds_no_table_says_so(cache, weights):
    recipe = pickle.dumps(WeightedSampler(500, weights=weights))
    shutil.rmtree(cache)
    with pytest.raises(ValueError, match=r"table of cumulative: .* was removed while .*auto"):
        pickle.loads(recipe).indices(0, 0, 8)


def _epochs(weights, first, told):
    sampler = WeightedSampler(500, weights=weights, replacement=False)
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


def test_threads_ask_for_orders_at_the_same_time(cache, weights):
    samplers = [
        WeightedSampler(500, weights=weights, replacement=False, seed=seed) for seed in range(4)
    ]

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


def test_the_orders_of_all_sources_of_a_mix_stay_open(cache):
    def order(signature, epoch):
        return orders.epoch_order(signature, epoch, 10, lambda: np.arange(10))

    opened = {(name, epoch): order(name, epoch) for name in "abc" for epoch in (0, 1)}
    assert all(order(*name) is array for name, array in opened.items())
    for number in range(50):
        order(f"past-{number}", 0)
    assert sum(map(len, orders._recent.values())) < 50


def test_a_process_that_asks_for_many_keeps_few_files_open(cache):
    before = len(os.listdir("/proc/self/fd"))
    for number in range(200):
        orders.epoch_order(f"many{number}", 0, 10, lambda: np.arange(10))
    assert len(os.listdir("/proc/self/fd")) < before + 100
