"""Nothing is left behind: no process, no descriptor, however the main process ends."""

from __future__ import annotations

import gc
import os
import signal
import threading
import time
from collections import Counter
from contextlib import suppress
from functools import partial

import psutil
import pytest

from penstock.core.user_errors import is_explained
from penstock.pipeline.loader.worker_errors import WorkerError
from tests.pipeline.loader.engines.deadly import DeadlyCollate, N, sampler
from tests.pipeline.loader.fakes import FakeDataset, digests, make_loader, the_pool
from tests.pipeline.loader.programs import assert_gone, family_at_work, start_program
from tests.shares import in_turn
from tests.waiting import wait_until

slow = partial(pytest.param, marks=pytest.mark.slow)

SCRIPT = """
import sys
from tests.pipeline.loader.fakes import FakeDataset, make_loader
if __name__ == "__main__":
    context, processes, end = sys.argv[1:]
    loader = make_loader(
        FakeDataset(4000, slow_s=0.05), engine="processes" if processes == "2" else "threads",
        num_workers=2, multiprocessing_context=context,
    )
    try:
        for number, batch in enumerate(loader):
            print(number, flush=True)
            if end == "exit" and number == 2:
                sys.exit(0)
            if end == "raise" and number == 2:
                raise LookupError("on purpose")
    except KeyboardInterrupt:
        print("interrupted", flush=True)
"""


# Between them, the tests see fork and forkserver every time.
@pytest.mark.parametrize("start_method", ["forkserver", slow("fork"), slow("spawn")])
def test_ctrl_c(tmp_path, start_method):
    process = start_program(tmp_path, SCRIPT, start_method, "2", "never")
    family = family_at_work(process)
    assert len(family) >= 2
    os.killpg(process.pid, signal.SIGINT)
    out, err = process.communicate(timeout=250)
    assert out.endswith("interrupted\n") and process.returncode == 0
    assert err == ""
    assert_gone(family)


@pytest.mark.parametrize("start_method", ["fork", slow("forkserver"), slow("spawn")])
def test_the_main_process_is_killed(tmp_path, start_method):
    process = start_program(tmp_path, SCRIPT, start_method, "2", "never")
    family = family_at_work(process)
    process.kill()
    assert_gone(family)
    process.communicate(timeout=250)


ORPHANED = """
import os, signal
from penstock.pipeline.loader.engines import worker
from tests.pipeline.loader.fakes import FakeDataset, make_loader

leave_signals = worker.leave_signals_to_parent

def begin_late():
    print(os.getpid(), flush=True)
    os.kill(os.getpid(), signal.SIGSTOP)
    leave_signals()

worker.leave_signals_to_parent = begin_late

if __name__ == "__main__":
    loader = make_loader(
        FakeDataset(40), engine="processes", num_workers=1, multiprocessing_context="fork"
    )
    list(loader)
"""


def test_the_main_process_is_killed_before_a_worker_begins(tmp_path):
    process = start_program(tmp_path, ORPHANED)
    assert process.stdout is not None
    worker = psutil.Process(int(process.stdout.readline()))
    deadline = time.monotonic() + 120
    while worker.status() != psutil.STATUS_STOPPED and time.monotonic() < deadline:
        time.sleep(0.01)
    process.kill()
    process.wait(timeout=120)
    worker.send_signal(signal.SIGCONT)
    try:
        assert_gone([worker])
    finally:
        with suppress(psutil.NoSuchProcess):
            worker.kill()
    process.communicate(timeout=250)


@pytest.mark.parametrize(("processes", "end"), in_turn(["0", "2"], ["exit", "raise"]))
def test_the_main_process_ends_without_closing(tmp_path, processes, end):
    process = start_program(tmp_path, SCRIPT, "fork", processes, end)
    family = family_at_work(process)
    _, err = process.communicate(timeout=250)
    assert process.returncode == (1 if end == "raise" else 0)
    assert ("LookupError: on purpose" in err) == (end == "raise")
    assert "Fatal" not in err and "thread" not in err
    assert_gone(family)


FORK = {"num_workers": 2, "multiprocessing_context": "fork"}


def _of(processes: int) -> dict[str, object]:
    return {**FORK, "engine": "processes" if processes else "threads", "processes": processes}


@pytest.mark.parametrize("processes", [0, 2])
def test_closing_gives_everything_back(processes):
    with make_loader(FakeDataset(40), **_of(processes)) as loader:
        digests(loader)  # what stays, such as multiprocessing's own, is there now
    gc.collect()
    fds, threads = _descriptors(), threading.enumerate()
    for persistent in (True, False):
        settings = {**_of(processes), "persistent_workers": persistent}
        with make_loader(FakeDataset(40, slow_s=0.01), **settings) as loader:
            batches = list(loader)
            iterator = iter(loader)
            next(iterator)
        wait_until(lambda: not _others(threads), "a thread is left")
        del batches, iterator
    wait_until(lambda: not _descriptors() - fds, "a descriptor is left")


@pytest.mark.parametrize("processes", [0, 1])
def test_a_loader_that_is_forgotten_ends_its_workers(processes):
    threads = threading.enumerate()
    loader = make_loader(FakeDataset(40), **_of(processes))
    digests(loader)
    workers = the_pool(loader).pids if processes else []
    assert len(workers) == processes and _others(threads)
    del loader
    gc.collect()
    wait_until(lambda: not _others(threads), "a thread is left")
    assert not any(map(psutil.pid_exists, workers))


def _fail_with_a_batch_that_ends_every_process() -> None:
    with (
        make_loader(FakeDataset(N), sampler(), collate=DeadlyCollate(), **_of(1)) as loader,
        pytest.raises(WorkerError, match="signal 9") as error,
    ):
        digests(loader)
    assert is_explained(error.value), "the program says it in one line"


def test_a_batch_that_ends_every_process_leaves_no_descriptor():
    _fail_with_a_batch_that_ends_every_process()
    gc.collect()
    before = _descriptors()
    _fail_with_a_batch_that_ends_every_process()
    gc.collect()
    wait_until(lambda: not _descriptors() - before, "a descriptor is left")


def _others(threads: list[threading.Thread]) -> list[threading.Thread]:
    """The threads that there are besides, which others may end meanwhile."""
    return [thread for thread in threading.enumerate() if thread not in threads]


def _descriptors() -> Counter[str]:
    """How many descriptors there are of each kind of file."""
    found: Counter[str] = Counter()
    for fd in os.listdir("/proc/self/fd"):
        with suppress(FileNotFoundError):  # another thread has closed it
            found[os.readlink(f"/proc/self/fd/{fd}").rstrip("0123456789[]")] += 1
    return found
