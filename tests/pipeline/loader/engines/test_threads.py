"""Workers that are threads: order, look-ahead, deadlines, and what belongs to the trainer."""

from __future__ import annotations

import gc
import subprocess
import sys
import threading
import time
import weakref
from dataclasses import replace

import numpy as np
import pytest
import torch

from penstock.core.contracts import CollateCapabilities
from penstock.pipeline.loader.contract import Delivery
from penstock.pipeline.loader.engines.pool import WorkerLayout, demanded_layout
from penstock.pipeline.loader.engines.threads import ThreadPool
from penstock.pipeline.loader.settings import LoaderSettings
from penstock.pipeline.loader.worker_errors import LoaderTimeoutError
from tests.pipeline.loader.engines.deadly import DeadlyDataset, sampler
from tests.pipeline.loader.fakes import (
    Collated,
    FakeDataset,
    Nothing,
    digests,
    make_loader,
    the_pool,
)
from tests.pipeline.loader.test_compute import task
from tests.waiting import wait_until_let_go

THREADS = {"engine": "threads", "num_workers": 2}
FORK = {"multiprocessing_context": "fork"}


class _Recorded(FakeDataset):
    """Says which batches were begun; the first one waits until others are done."""

    def __init__(self, n: int) -> None:
        super().__init__(n)
        self.begun: list[int] = []
        self.others_done = threading.Event()

    def fetch(self, indices, positions, epoch):
        first = int(positions[0])
        self.begun.append(first)
        if first == 0:
            assert self.others_done.wait(120)
        if first == 24:
            self.others_done.set()
        return super().fetch(indices, positions, epoch)


def test_an_idle_thread_takes_the_next_task_and_order_is_kept():
    dataset = _Recorded(80)
    with make_loader(dataset, **THREADS) as loader:
        assert digests(loader) == digests(make_loader(FakeDataset(80)))
    assert sorted(dataset.begun[:4]) == [0, 8, 16, 24], "one thread waits, the other goes on"


@pytest.mark.parametrize("prefetch_factor", [1, 3])
def test_no_more_than_asked_for_is_computed_ahead(prefetch_factor):
    dataset = _Recorded(800)
    dataset.others_done.set()
    with make_loader(dataset, prefetch_factor=prefetch_factor, **THREADS) as loader:
        iterator = iter(loader)
        for taken in range(1, 4):
            next(iterator)
            ahead = taken + 2 * prefetch_factor
            deadline = time.monotonic() + 120
            while len(dataset.begun) < ahead and time.monotonic() < deadline:
                time.sleep(0.005)
            time.sleep(0.1)  # more would come now
            assert len(dataset.begun) == ahead
        iterator.close()
        time.sleep(0.2)
        assert len(dataset.begun) == ahead, "broken off is broken off"


def test_a_hang_ends_the_run_at_the_deadline_with_all_stacks():
    start = time.monotonic()
    with (
        make_loader(DeadlyDataset("hang"), sampler(), timeout_s=2.5, **THREADS) as loader,
        pytest.raises(LoaderTimeoutError, match=r"timeout_s=2.5 s.*engine=processes") as caught,
    ):
        digests(loader)
    assert time.monotonic() - start < 100
    stacks = "".join(caught.value.__notes__)
    assert "thread penstock-" in stacks and "in _end" in stacks and "MainThread" in stacks


def test_an_error_says_thread_key_and_position():
    with make_loader(FakeDataset(60, crash=20), **THREADS) as loader:
        with pytest.raises(KeyError) as caught:
            digests(loader)
        notes = "".join(caught.value.__notes__)
        assert "in worker thread penstock-" in notes and "position 20" in notes
        loader.dataset.crash = None
        assert len(digests(loader)) == 8, "it starts again after an error"


class _Given:
    """What a batch is made of: an object that says when it is gone."""


class _Computer(Nothing):
    """Notes what is begun and what is still held; at one batch it waits until it is told."""

    def __init__(self, waits_at: int | None = None) -> None:
        self.waits_at, self.is_waiting, self.free = waits_at, threading.Event(), threading.Event()
        self.begun: list[int] = []
        self.batches: list[weakref.ref[_Given]] = []

    def __call__(self, asked, **given):
        self.begun.append(asked.number)
        if asked.number == self.waits_at:
            self.is_waiting.set()
            assert self.free.wait(120)
        given = _Given()
        self.batches.append(weakref.ref(given))
        return Delivery(asked.number, {"given": given})


@pytest.mark.parametrize("waits_at", [1, 2])
def test_what_is_dropped_is_neither_begun_nor_kept(waits_at):
    compute = _Computer(waits_at)
    pool = ThreadPool(compute, 1, depth=3, timeout_s=120)
    try:
        for number in range(3):
            pool.submit([replace(task(0), number=number)])
        assert compute.is_waiting.wait(120)
        pool.drop()
        compute.free.set()
        (pending,) = pool.submit([replace(task(0), number=3)])
        assert pool.take(pending).number == 3
        assert compute.begun == [*range(waits_at + 1), 3]
        wait_until_let_go(compute.batches)
    finally:
        pool.close()


def test_a_crew_that_is_closed_is_not_held_until_the_program_ends():
    compute = _Computer()
    gone = weakref.ref(compute)
    pool = ThreadPool(compute, 2, depth=3, timeout_s=120)
    pool.close()
    del pool, compute
    gc.collect()
    assert gone() is None


class _SeesThreads(Collated):
    def __call__(self, samples):
        batch = super().__call__(samples)
        batch["threads"] = torch.tensor(torch.get_num_threads())
        return batch


def test_torch_threads_are_left_to_the_trainer():
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        with make_loader(FakeDataset(40), collate=_SeesThreads(), **THREADS) as loader:
            assert {int(batch["threads"]) for batch in loader} == {2}
            assert torch.get_num_threads() == 2
        settings = {**THREADS, **FORK, "engine": "processes", "collate": _SeesThreads()}
        with make_loader(FakeDataset(40), **settings) as loader:
            assert {int(batch["threads"]) for batch in loader} == {1}
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)


class _NeedsAProcess(FakeDataset):
    global_random = True

    def fetch(self, indices, positions, epoch):
        before = threading.active_count()
        samples = super().fetch(indices, positions, epoch)
        for sample in samples:
            sample["label"] = before
        return samples


class _DrawingCollate(Collated):
    capabilities = CollateCapabilities(global_random=True)


@pytest.mark.parametrize(
    ("dataset", "changes"),
    [(_NeedsAProcess(40), {}), (FakeDataset(40), {"collate": _DrawingCollate()})],
    ids=["dataset", "collate"],
)
def test_global_random_states_need_a_process_each(dataset, changes):
    settings = {**FORK, "engine": "processes", "num_workers": 2, "processes": 1, **changes}
    with make_loader(dataset, **settings) as loader:
        next(iter(loader))
        assert len(the_pool(loader).pids) == 2
        assert all(worker.num_threads == 1 for worker in the_pool(loader)._workers)
    with make_loader(dataset, **THREADS, **FORK, **changes) as loader:
        next(iter(loader))
        assert len(the_pool(loader).pids) == 2
    for engine in ("threads", None):
        with pytest.raises(ValueError, match=r"loader.processes is 0.*global random states"):
            make_loader(dataset, engine=engine, num_workers=2, processes=0, **changes)


@pytest.mark.parametrize(
    ("num_workers", "processes", "shares"),
    [(2, 0, ()), (0, None, ()), (3, 1, (3,)), (5, 2, (3, 2)), (2, 2, (1, 1))],
)
def test_workers_are_spread_over_processes(num_workers, processes, shares):
    settings = LoaderSettings(num_workers=num_workers, processes=processes)
    threads = 0 if shares else num_workers
    expected = WorkerLayout(threads=threads, processes=shares)
    assert demanded_layout(Nothing(), settings) == expected


def test_only_settings_or_components_demand_a_layout():
    free = LoaderSettings(num_workers=2)
    assert demanded_layout(Nothing(), free) is None
    assert str(WorkerLayout(2)) == "2 threads of this process"
    assert str(WorkerLayout.spread(5, 2)) == "2 processes of 2 to 3 threads each"
    assert str(WorkerLayout.spread(1, 1)) == "1 process of 1 thread"
    assert str(WorkerLayout()) == "the consumer's own thread"


@pytest.mark.parametrize("engine", ["threads", "processes"])
def test_what_threads_need_is_imported_before_a_batch_is_asked_for(engine):
    program = f"""
import sys
from tests.pipeline.loader.fakes import FakeDataset, make_loader
loader = make_loader(FakeDataset(40), engine={engine!r}, num_workers=2)
before = set(sys.modules)
next(iter(loader))
print(sorted(name for name in set(sys.modules) - before if name.startswith("penstock.pipeline")))
"""
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert run.stdout.strip() == "[]", run.stderr


def test_a_process_without_a_worker_is_refused():
    with pytest.raises(ValueError, match=r"loader.processes is 3 and loader.num_workers 2"):
        LoaderSettings(engine="processes", num_workers=2, processes=3)
    with pytest.raises(ValueError, match=r"processes is 2 .* type loader.engine=processes"):
        LoaderSettings(engine="threads", num_workers=2, processes=2)
    with pytest.raises(ValueError, match=r"processes is 0 .* type loader.engine=threads"):
        LoaderSettings(engine="processes", num_workers=2, processes=0)
    with pytest.raises(ValueError, match=r"new name: type loader.engine=processes"):
        LoaderSettings(engine="ring", num_workers=2, processes=2)
    with pytest.raises(ValueError, match=r"loader.processes is -1"):
        LoaderSettings(processes=-1)


def _seconds_to_the_first_batch(**settings):
    with make_loader(FakeDataset(40), **settings) as loader:
        start = time.perf_counter()
        next(iter(loader))
        return time.perf_counter() - start


def test_the_first_batch_comes_at_once():
    """Nobody waits for a deadline: whoever did would do so every time, on any machine."""
    alone = min(_seconds_to_the_first_batch() for _ in range(5))
    handed_over = 10 * sys.getswitchinterval()  # threads that compute take turns
    seconds = []
    while len(seconds) < 20 and min(seconds, default=1e9) > 10 * alone + handed_over:
        seconds.append(_seconds_to_the_first_batch(**THREADS))
    assert min(seconds) <= 10 * alone + handed_over, seconds


def test_what_came_before_an_error_of_the_tasks_is_delivered():
    loader = make_loader(FakeDataset(40), **THREADS)
    tasks = list(loader._tasks(epoch=0, start=0, quarantine=frozenset()))

    def broken():
        yield from tasks[:2]
        raise OSError("the stream broke off")

    run = loader._engine.run(broken())
    got = [next(run).number, next(run).number]
    with pytest.raises(OSError, match="broke off"):
        next(run)
    assert got == [0, 1]
    loader.close()
    assert np.array_equal(tasks[0].positions, np.arange(8))
