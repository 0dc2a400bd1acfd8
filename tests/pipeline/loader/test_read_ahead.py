"""Reading ahead: begun before a worker is free, bounded, in order, and the same batches."""

from __future__ import annotations

import logging
import multiprocessing
import os
import threading
import time
import weakref

import numpy as np
import pytest

from penstock.pipeline.loader import read_ahead
from penstock.pipeline.loader.engines.watched_worker import Job
from penstock.pipeline.loader.engines.worker_process import WorkerProcess
from penstock.pipeline.loader.read_ahead import ReadAhead
from penstock.pipeline.loader.worker_errors import LoaderTimeoutError
from penstock.pipeline.samplers.random import RandomSampler
from tests.pipeline.loader.engines.deadly import RECORD, N, expected, sampler
from tests.pipeline.loader.fakes import FakeDataset, digest, digests, make_loader, the_pool
from tests.pipeline.loader.staged import RowsCollated, StagedFake

THREADS = {"engine": "threads", "num_workers": 1, "prefetch_factor": 1, "collate": RowsCollated()}
PROCESS = {**THREADS, "engine": "processes", "processes": 1, "multiprocessing_context": "fork"}
WAYS = pytest.mark.parametrize("settings", [THREADS, PROCESS], ids=["threads", "process"])
FORK = multiprocessing.get_context("fork")


@WAYS
@pytest.mark.parametrize("more", [{}, {"num_workers": 3, "prefetch_factor": 2}])
@pytest.mark.parametrize("depth", [1, 5])
def test_the_batches_are_the_same(settings, more, depth):
    alike = make_loader(FakeDataset(200, bad=(3, 70, 71)), max_error_rate=1)
    dataset = StagedFake(200, bad=(3, 70, 71))
    changes = {**settings, **more, "read_ahead": depth, "max_error_rate": 1}
    with make_loader(dataset, **changes) as loader:
        assert digests(loader, 3) == digests(alike, 3)


@WAYS
def test_several_processes_read_ahead_each(settings):
    changes = {**settings, "num_workers": 2, "read_ahead": 3}
    if "processes" in settings:
        changes["processes"] = 2
    with make_loader(StagedFake(200), **changes) as loader:
        assert digests(loader) == digests(make_loader(FakeDataset(200)))


@WAYS
@pytest.mark.parametrize(("depth", "begun_batches"), [(0, 1), (3, 4), (6, 7)])
def test_reading_is_begun_before_the_first_batch_is_decoded_and_no_more_of_it(
    settings, depth, begun_batches
):
    begun = FORK.Value("i", 0)

    def count(records):
        with begun.get_lock():
            begun.value += 1

    def wait_for_reads(positions):
        deadline = time.monotonic() + 120
        while positions[0] == 0 and begun.value < begun_batches and time.monotonic() < deadline:
            time.sleep(0.005)
        if positions[0] == 0:
            time.sleep(0.1)  # more would come now
            assert begun.value == begun_batches

    dataset = StagedFake(200, on_read=count, on_finish=wait_for_reads)
    with make_loader(dataset, read_ahead=depth, across_epochs=False, **settings) as loader:
        assert digests(loader) == digests(make_loader(FakeDataset(200)))
    assert begun.value == 25, "each batch once"


def test_reads_are_under_way_at_the_same_time():
    together = threading.Barrier(3)

    def meet(records):
        if records[0] < 24:
            together.wait(120)

    with make_loader(StagedFake(80, on_read=meet), read_ahead=4, **THREADS) as loader:
        assert digests(loader) == digests(make_loader(FakeDataset(80)))


@WAYS
def test_an_error_of_reading_is_raised_at_its_batch(settings):
    def fail(records):
        if 27 in records:
            raise OSError("the network is gone")

    got = []
    with make_loader(StagedFake(80, on_read=fail), read_ahead=6, **settings) as loader:
        with pytest.raises(OSError, match="the network is gone") as caught:
            for batch in loader:
                got.append(digest(batch))
        assert "position 27" in "".join(caught.value.__notes__)
    assert got == digests(make_loader(FakeDataset(80)))[:3]


def test_breaking_off_ends_the_reading():
    begun, order = [], RandomSampler(800)
    dataset = StagedFake(800, on_read=lambda records: begun.append(tuple(records)))
    threads = threading.active_count()
    with make_loader(dataset, order, read_ahead=4, across_epochs=False, **THREADS) as loader:
        for batches in (1, 3):
            iterator = iter(loader)
            for _ in range(batches):
                next(iterator)
            iterator.close()
            time.sleep(0.2)
            assert len(begun) < 50, "not all of the 100 batches"
        assert not the_pool(loader)._reader._readings, "no records are kept"
        alike = make_loader(FakeDataset(800), order)
        for each in (loader, alike):
            each.set_epoch(1)
        assert digests(loader) == digests(alike)
        # What was under way may still be read, of the epoch before.
        whole = [tuple(order.indices(1, at, at + 8).tolist()) for at in range(0, 800, 8)]
        assert sorted(each for each in begun if each in whole) == sorted(whole)
    assert threading.active_count() <= threads


def test_reading_that_hangs_ends_the_run_at_the_deadline():
    ended = threading.Event()

    def hang(records):
        if 27 in records:
            ended.wait(120)

    changes = {**THREADS, "timeout_s": 2.5, "read_ahead": 2}
    with (
        make_loader(StagedFake(80, on_read=hang), **changes) as loader,
        pytest.raises(LoaderTimeoutError) as caught,
    ):
        digests(loader)
    ended.set()
    stacks = "".join(caught.value.__notes__)
    assert "thread penstock-read-" in stacks and "in hang" in stacks


def test_a_record_that_kills_whoever_reads_it_is_quarantined(caplog):
    def kill(records):
        if RECORD in records:
            os.kill(os.getpid(), 9)

    changes = {**PROCESS, "num_workers": 2, "read_ahead": 4}
    with make_loader(StagedFake(N, on_read=kill), sampler(), **changes) as loader:
        assert digests(loader) == expected()
        assert loader.stats.bad_samples == 1, "its neighbours are good"
        state = loader.state_dict() | {"next_batch": 0, "finished": False}
    caplog.clear()
    with make_loader(StagedFake(N, on_read=kill), sampler(), **changes) as loader:
        loader.load_state_dict(state)
        assert digests(loader) == expected()
    assert "it is replaced" not in caplog.text, "nor is it read ahead"


def test_what_waits_in_a_process_has_no_deadline_yet():
    worker = object.__new__(WorkerProcess)
    worker.num_threads, worker._timeout_s = 2, 10.0
    worker.jobs = {ticket: Job([], 0) for ticket in range(5)}
    worker._deadlines = {}
    worker._expect()
    assert set(worker._deadlines) == {0, 1}
    before = dict(worker._deadlines)
    del worker.jobs[0], worker._deadlines[0]
    worker._expect()
    assert set(worker._deadlines) == {1, 2} and worker._deadlines[1] == before[1]


def test_a_data_set_that_gives_whole_samples_is_read_as_ever(caplog, monkeypatch):
    monkeypatch.setattr(read_ahead, "_said", set())
    with caplog.at_level(logging.WARNING):
        for _ in range(2):
            with make_loader(FakeDataset(80), **THREADS, read_ahead=3) as loader:
                assert digests(loader) == digests(make_loader(FakeDataset(80)))
                assert the_pool(loader)._reader is None
    assert caplog.text.count("loader.read_ahead=3 changes nothing") == 1


def test_what_was_not_begun_is_left_to_the_worker():
    free = threading.Event()
    loader = make_loader(StagedFake(80, on_read=lambda records: free.wait(120)))
    tasks = list(loader._tasks(epoch=0, start=0, quarantine=frozenset()))
    reader = ReadAhead(loader._compute.read, 1)
    for ticket in range(3):
        reader.begin(ticket, tasks[ticket])
    while not reader._readings[0].given.running():
        time.sleep(0.001)
    assert reader.take(1) == {}, "the only thread is at another one"
    free.set()
    given = reader.take(0)
    assert np.array_equal(given["records"], tasks[0].indices) and given["times"].read > 0
    assert reader.take(0) == {} and reader.take(7) == {}
    reader.close(5)


def test_records_that_were_taken_are_held_by_nobody():
    class Records(list):
        pass

    reading = threading.Event()

    def read(task):
        reading.set()
        return Records(task.indices)

    task = next(make_loader(FakeDataset(8))._tasks(epoch=0, start=0, quarantine=frozenset()))
    reader = ReadAhead(read, 1)
    reader.begin(0, task)
    assert reading.wait(120)
    gone = weakref.ref(reader.take(0)["records"])
    deadline = time.monotonic() + 120
    while gone() is not None and time.monotonic() < deadline:
        time.sleep(0.005)  # the thread that read them has just given them
    assert gone() is None
    reader.close(5)


def test_less_than_nothing_is_refused():
    with pytest.raises(ValueError, match=r"loader.read_ahead is -1: .* greater than or equal to 0"):
        make_loader(FakeDataset(8), read_ahead=-1)
