"""The server that worker processes are forked from ends: another one is started."""

from __future__ import annotations

import os
import signal
import threading
import time
from contextlib import suppress
from multiprocessing import forkserver

import psutil
import pytest

from penstock.core import processes
from penstock.pipeline.loader.engines.worker import PRELOADED
from penstock.pipeline.loader.worker_errors import WorkerError
from tests.pipeline.loader.engines.deadly import N, expected, sampler
from tests.pipeline.loader.fakes import FakeDataset, digest, digests, make_loader, the_pool
from tests.pipeline.loader.programs import assert_gone

PROCESSES = {"engine": "processes", "multiprocessing_context": "forkserver", "timeout_s": 30}


def _server() -> int:
    return vars(forkserver._forkserver)["_forkserver_pid"]


def _server_after(ended: int) -> int:
    """The server that there is now, or that comes in the place of the one that has ended."""
    deadline = time.monotonic() + 120
    while (server := _server()) in (None, ended):
        assert time.monotonic() < deadline, "no other server was started"
        time.sleep(0.01)
    return server


@pytest.mark.parametrize("times", [pytest.param(1, marks=pytest.mark.slow), 2])
def test_while_it_is_asked_for_a_process(times):
    settings = {**PROCESSES, "processes": 1, "num_workers": 1}
    with make_loader(FakeDataset(N), sampler(), **settings) as loader:
        got, server = [], 0
        for at, batch in enumerate(loader):
            got.append(digest(batch))
            if at in range(times):
                server = _server_after(server)
                os.kill(server, signal.SIGSTOP)  # whoever asks it waits for its answer
                with suppress(IndexError, ProcessLookupError):  # not started yet, the second time
                    os.kill(the_pool(loader).pids[0], signal.SIGKILL)
                time.sleep(0.3)
                os.kill(server, signal.SIGKILL)
        assert got == expected(quarantined=False)
        assert loader.state_dict()["quarantined"] == []


class _SlowToArrive(FakeDataset):
    def __setstate__(self, state):
        time.sleep(1)
        self.__dict__.update(state)


def test_while_many_processes_start():
    settings = {**PROCESSES, "processes": 3, "num_workers": 3}
    with make_loader(_SlowToArrive(N), sampler(), **settings) as loader:
        killer = threading.Thread(target=_kill_server, args=(loader,))
        killer.start()
        assert digests(loader) == expected(quarantined=False)
        killer.join()


def _kill_server(loader) -> None:
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline:
        pool = the_pool(loader)
        if pool is not None and len(pool.pids) == 3:
            os.kill(_server(), signal.SIGKILL)
            return
        time.sleep(0.01)
    raise AssertionError("no three processes started")


@pytest.mark.slow
def test_that_is_stopped_while_a_worker_is_replaced():
    settings = {**PROCESSES, "processes": 1, "num_workers": 1, "timeout_s": 10}
    with make_loader(FakeDataset(N), sampler(), **settings) as loader:
        got = []
        for at, batch in enumerate(loader):
            got.append(digest(batch))
            if at == 0:
                os.kill(_server_after(0), signal.SIGSTOP)
                os.kill(the_pool(loader).pids[0], signal.SIGKILL)
        assert got == expected(quarantined=False)


def _stopped_server(monkeypatch) -> psutil.Process:
    """The server, stopped; the next start of a worker may take a second."""
    processes.process_context("forkserver", PRELOADED)
    server = psutil.Process(processes.ensure_server("forkserver"))
    seconds = iter([1.0])
    monkeypatch.setattr(processes, "start_patience", lambda timeout_s: next(seconds, 60.0))
    server.suspend()
    return server


@pytest.mark.slow
def test_that_is_stopped_before_the_workers_start(monkeypatch):
    server = _stopped_server(monkeypatch)
    settings = {**PROCESSES, "processes": 1, "num_workers": 1}
    with make_loader(FakeDataset(N), sampler(), **settings) as loader:
        assert digests(loader) == expected(quarantined=False)
    assert_gone([server])


def test_that_is_stopped_and_torchs_workers(monkeypatch):
    server = _stopped_server(monkeypatch)
    settings = {**PROCESSES, "engine": "torch", "num_workers": 2}
    with (
        make_loader(FakeDataset(N), sampler(), **settings) as loader,
        pytest.raises(WorkerError, match="multiprocessing_context=spawn"),
    ):
        digests(loader)
    assert_gone([server])


def test_that_multiprocessing_started_in_place_of_a_killed_one_and_is_stopped(monkeypatch):
    processes.start_server("forkserver", PRELOADED)
    os.kill(_server(), signal.SIGKILL)
    assert_gone([psutil.Process(_server())])
    forkserver.ensure_running()  # as it does by itself where a process is wanted
    test_that_is_stopped_and_torchs_workers(monkeypatch)
