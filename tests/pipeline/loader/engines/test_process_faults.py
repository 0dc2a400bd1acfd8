"""Worker processes that die or hang: replaced, and the batches are the same."""

from __future__ import annotations

import logging
import multiprocessing
import os
import signal
import socket
import time

import psutil
import pytest

from penstock.pipeline.loader.engines import worker
from penstock.pipeline.loader.faults import BadSampleError
from penstock.pipeline.loader.worker_errors import WorkerError
from tests.pipeline.loader.engines.deadly import (
    RECORD,
    DeadlyCollate,
    DeadlyDataset,
    N,
    expected,
    position_of,
    sampler,
)
from tests.pipeline.loader.fakes import FakeDataset, digest, digests, make_loader, the_pool

PROCESSES = {
    "engine": "processes",
    "processes": 1,
    "num_workers": 2,
    "multiprocessing_context": "fork",
}


@pytest.mark.parametrize(
    ("how", "timeout_s"),
    [("kill", 90), ("segfault", 90), ("hang", 2.5), ("stop", 2.5)],
)
def test_a_record_that_ends_its_process_is_quarantined(how, timeout_s, tmp_path, caplog, capfd):
    witness = tmp_path / "witness"
    settings = {**PROCESSES, "timeout_s": timeout_s}
    start = time.monotonic()
    with (
        caplog.at_level(logging.WARNING),
        make_loader(DeadlyDataset(how, witness), sampler(), **settings) as loader,
    ):
        assert digests(loader) == expected()
        position = position_of(RECORD)
        assert loader.state_dict()["quarantined"] == [[0, position]]
        assert loader.stats.bad_samples == 1, "its neighbours are good"
        assert loader.stats.as_dict()["restarts"] == 1, "the processes that examine are not counted"
        assert str(loader.stats).endswith("workers: 1 replaced, which died or hung")
    assert time.monotonic() - start < 90
    assert "quarantined: it killed the worker" in caplog.text
    assert f"'img/{RECORD:07d}.jpg' at position {position}" in caplog.text
    lines = set(witness.read_text().splitlines())
    assert len(lines) == 3, "once in the run, twice in a process of its own"


def test_a_record_that_wants_too_much_memory_is_not_quarantined(tmp_path):
    witness = tmp_path / "witness"
    with make_loader(DeadlyDataset("memory", witness), sampler(), **PROCESSES) as loader:
        with pytest.raises(MemoryError):
            digests(loader)
        assert loader.stats.bad_samples == 0
        assert not loader.state_dict()["quarantined"]
    lines = set(witness.read_text().splitlines())
    assert len(lines) == 3, "once in the run, twice in a process of its own"


def test_every_process_dies_and_the_run_goes_on(caplog):
    settings = {**PROCESSES, "processes": 2, "num_workers": 3}
    with make_loader(DeadlyDataset("kill"), sampler(), **settings) as loader:
        assert digests(loader, epochs=2) == expected(epochs=2)
        held = [[0, position_of(RECORD, 0)]]
        assert loader.state_dict()["quarantined"] == held, "it kills in one epoch"
        state = loader.state_dict()
    # Whoever resumes from the state does not meet the record again.
    with make_loader(DeadlyDataset("kill"), sampler(), **settings) as loader:
        caplog.clear()
        loader.load_state_dict(state | {"epoch": 0, "next_batch": 0, "finished": False})
        assert digests(loader) == expected()
        assert "it is replaced" not in caplog.text


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSEGV, signal.SIGSTOP])
def test_a_process_that_is_ended_from_outside(number):
    settings = {**PROCESSES, "processes": 2, "timeout_s": 1.5}
    dataset = FakeDataset(N, slow_s=0.02)
    with make_loader(dataset, sampler(), **settings) as loader:
        got = []
        for at, batch in enumerate(loader):
            got.append(digest(batch))
            if at in (1, 4):
                os.kill(the_pool(loader).pids[at % 2], number)
        assert got == expected(quarantined=False)
        assert loader.state_dict()["quarantined"] == []
        deadline = time.monotonic() + 120
        # After the last batch the one that examined is ended, and one that died last replaced.
        while not two_live(the_pool(loader).pids) and time.monotonic() < deadline:
            time.sleep(0.05)
        assert two_live(the_pool(loader).pids)


def two_live(pids):
    return len(pids) == 2 and all(psutil.pid_exists(pid) for pid in pids)


def test_a_quarantined_sample_may_not_be_passed_over_where_none_may():
    settings = {**PROCESSES, "on_error": "raise"}
    with (
        make_loader(DeadlyDataset("kill"), sampler(), **settings) as loader,
        pytest.raises(BadSampleError, match=rf"'img/{RECORD:07d}.jpg' at position"),
    ):
        digests(loader)


def test_a_batch_that_ends_every_process_ends_the_run():
    with (
        make_loader(FakeDataset(N), sampler(), collate=DeadlyCollate(), **PROCESSES) as loader,
        pytest.raises(WorkerError, match=r"signal 9.*twice, with batch \d of epoch 0 alone"),
    ):
        digests(loader)


class _EndsOnArrival(FakeDataset):
    def __setstate__(self, state):
        os._exit(3)


def test_processes_that_cannot_start_end_the_run():
    settings = {**PROCESSES, "multiprocessing_context": "forkserver"}
    with (
        make_loader(_EndsOnArrival(N), **settings) as loader,
        pytest.raises(WorkerError, match="exit code 3"),
    ):
        digests(loader)


def test_starts_that_fail_now_and_then_do_not_end_the_run(monkeypatch):
    starts = multiprocessing.get_context("fork").Value("i", 0)

    def fail_at_times(**options):
        with starts.get_lock():
            starts.value += 1
            number = starts.value
        if number in (1, 2, 4, 5):
            os._exit(3)

    monkeypatch.setattr(worker, "end_with_parent", fail_at_times)
    settings = {**PROCESSES, "num_workers": 1, "prefetch_factor": 1}
    with make_loader(FakeDataset(N, slow_s=0.02), sampler(), **settings) as loader:
        got = []
        for at, batch in enumerate(loader):
            got.append(digest(batch))
            if at == 1:
                os.kill(the_pool(loader).pids[0], signal.SIGKILL)
        assert got == expected(quarantined=False)
    assert starts.value >= 6


def test_a_timeout_that_a_program_set_for_its_sockets_ends_no_process():
    socket.setdefaulttimeout(0.3)
    try:
        with make_loader(FakeDataset(N, slow_s=0.1), sampler(), **PROCESSES) as loader:
            batches = iter(loader)
            got = [digest(next(batches))]
            pids = the_pool(loader).pids
            got += [digest(batch) for batch in batches]
            assert got == expected(quarantined=False)
            assert the_pool(loader).pids == pids
    finally:
        socket.setdefaulttimeout(None)


class _Locked(FakeDataset):
    def __getstate__(self):
        raise TypeError("cannot pickle '_thread.lock' object")


def test_what_cannot_be_sent_to_processes_is_told():
    settings = {**PROCESSES, "multiprocessing_context": "forkserver"}
    with (
        make_loader(_Locked(N), **settings) as loader,
        pytest.raises(ValueError, match=r"cannot be sent to workers.*loader.engine=threads"),
    ):
        digests(loader)


def test_an_error_carries_its_traceback_and_worker():
    with make_loader(FakeDataset(N, crash=RECORD), **PROCESSES) as loader:
        with pytest.raises(KeyError) as caught:
            digests(loader)
        cause = str(caught.value.__cause__)
        assert "in worker process" in cause and "in _one" in cause
        assert f"position {RECORD}" in "".join(caught.value.__notes__)
        loader.dataset.crash = None
        assert len(digests(loader)) == 8, "it starts again after an error"


@pytest.mark.slow
def test_an_iteration_broken_off_while_a_death_is_examined():
    with make_loader(DeadlyDataset("hang"), sampler(), **PROCESSES, timeout_s=0.7) as loader:
        for _ in range(2):
            iterator = iter(loader)
            next(iterator)
            time.sleep(1)
        loader.dataset.how = "kill"
        assert digests(loader) == expected()
