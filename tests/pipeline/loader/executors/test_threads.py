"""Workers that are threads: order, look-ahead, deadlines, and what belongs to the trainer."""

from __future__ import annotations

import threading
import time

import numpy as np
import pytest
import torch

from penstock.pipeline.loader.worker_errors import LoaderTimeoutError
from tests.pipeline.loader.executors.deadly import DeadlyDataset, sampler
from tests.pipeline.loader.fakes import (
    Collated,
    DrawingCollate,
    DrawingDataset,
    FakeDataset,
    digests,
    make_loader,
    pids_of,
)

THREADS = {"engine": "threads", "num_workers": 2}


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
    assert sorted(dataset.begun[:4]) == [0, 8, 16, 24], "one thread waits, the other continues"


def test_a_hang_ends_the_run_at_the_deadline_with_all_stacks(capfd):
    start = time.monotonic()
    with (
        make_loader(DeadlyDataset("hang"), sampler(), timeout_s=2.5, **THREADS) as loader,
        pytest.raises(LoaderTimeoutError, match=r"timeout_s=2.5 s.*engine=processes"),
    ):
        digests(loader)
    assert time.monotonic() - start < 100
    stacks = capfd.readouterr().err
    assert "in _end" in stacks and "Current thread" in stacks


def test_an_error_before_a_batch_ends_the_run(monkeypatch):
    def fails(**_):
        raise AttributeError("a library that another thread imports")

    monkeypatch.setattr("penstock.pipeline.loader.executors.threads.use_one_thread", fails)
    with make_loader(FakeDataset(80), **THREADS) as loader:
        with pytest.raises(AttributeError, match="another thread"):
            digests(loader)


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
        settings = {**THREADS, "engine": "processes", "collate": _SeesThreads()}
        with make_loader(FakeDataset(40), **settings) as loader:
            assert {int(batch["threads"]) for batch in loader} == {1}
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)


@pytest.mark.parametrize(
    ("dataset", "changes"),
    [(DrawingDataset(40), {}), (FakeDataset(40), {"collate": DrawingCollate()})],
    ids=["dataset", "collate"],
)
def test_global_random_states_need_a_process_each(dataset, changes):
    for engine in ("threads", "processes", None):
        with make_loader(dataset, engine=engine, num_workers=2, **changes) as loader:
            next(iter(loader))
            assert len(pids_of(loader)) == 2


def test_what_came_before_an_error_of_the_tasks_is_delivered():
    loader = make_loader(FakeDataset(40), **THREADS)
    tasks = list(loader._tasks(epoch=0, start=0, quarantine=frozenset()))

    def broken():
        yield from tasks[:2]
        raise OSError("the stream broke off")

    run = loader._scheduler.run(broken())
    got = [next(run).number, next(run).number]
    with pytest.raises(OSError, match="broke off"):
        next(run)
    assert got == [0, 1]
    loader.close()
    assert np.array_equal(tasks[0].positions, np.arange(8))
