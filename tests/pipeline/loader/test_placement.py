"""Where workers run, as the kernel reports it."""

from __future__ import annotations

import os
import threading
from contextlib import suppress

import psutil
import pytest

from penstock.pipeline.loader.settings import LoaderSettings
from tests.pipeline.loader.fakes import FakeDataset, digests, make_loader
from tests.waiting import wait_until

LAST = max(os.sched_getaffinity(0))


def where(task):
    """The cores and the priority of a thread, or of a process's first one."""
    return os.sched_getaffinity(task), os.getpriority(os.PRIO_PROCESS, task)


def _processes_at(place):
    """The processes below this one that run there."""
    found = []
    for each in psutil.Process().children(recursive=True):
        with suppress(OSError):  # it ended meanwhile
            found += [each.pid] * (where(each.pid) == place)
    return found


def _threads_at(place):
    """The names of the threads that run there."""
    found = []
    for thread in threading.enumerate():
        with suppress(OSError, TypeError):  # it ended meanwhile, or begins
            found += [thread.name] * (where(thread.native_id) == place)
    return sorted(found)


@pytest.mark.parametrize("engine", ["processes", "torch"])
def test_worker_processes_run_where_they_are_told(engine):
    before = where(0)
    with make_loader(
        FakeDataset(64), engine=engine, affinity=[LAST], nice=5, num_workers=2
    ) as loader:
        got = digests(loader)
        place = {LAST}, before[1] + 5
        # The second may start when all is done, and move its threads one by one.
        wait_until(lambda: len(_processes_at(place)) == 2)
    assert where(0) == before, "the trainer is left alone"
    assert got == digests(make_loader(FakeDataset(64)))


def test_threads_run_where_they_are_told_and_nothing_else_does():
    before = where(0)
    with make_loader(
        FakeDataset(64), engine="threads", num_workers=2, affinity=[LAST], nice=5
    ) as loader:
        digests(loader)
        place = {LAST}, before[1] + 5  # where one of them may come when all is done
        wait_until(lambda: _threads_at(place) == ["penstock-0", "penstock-1"])
    assert where(0) == before


def test_cores_that_this_process_may_not_use_are_refused():
    with pytest.raises(ValueError, match=r"core 4097 given.*type loader\.affinity=none$"):
        LoaderSettings(affinity=[4097, LAST])
    with pytest.raises(ValueError, match=r"type loader\.affinity=none loader\.nice=0"):
        LoaderSettings(engine="ray", nice=3)
