"""Where workers run, as the kernel reports it."""

from __future__ import annotations

import os
import sys
import threading
import time
from contextlib import suppress

import psutil
import pytest

from penstock import compose
from penstock.pipeline.loader.executors.placement import cores_text
from penstock.pipeline.loader.settings import LoaderSettings
from tests.pipeline.loader.fakes import FakeDataset, digests, make_loader
from tests.waiting import wait_until

LAST = max(os.sched_getaffinity(0))


def test_cores_are_written_as_ranges():
    assert cores_text({0, 1, 2, 8, 10, 11}) == "0-2,8,10-11"


def test_the_removed_numa_policy_names_what_to_use_instead():
    with pytest.raises(ValueError, match=r"loader\.affinity.*torchrun --numa-binding=node"):
        compose(["loader.affinity=auto"])


def where(task):
    """The cores and the priority of a thread, or of a process's first one."""
    return os.sched_getaffinity(task), os.getpriority(os.PRIO_PROCESS, task)


def _processes_at(place):
    """The processes below this one that run there with all their threads."""
    found = []
    for each in psutil.Process().children(recursive=True):
        with suppress(OSError):  # it ended meanwhile
            tasks = map(int, os.listdir(f"/proc/{each.pid}/task"))
            found += [each.pid] * all(where(task) == place for task in tasks)
    return found


def _threads_at(place):
    """The names of the threads that run there."""
    found = []
    for thread in threading.enumerate():
        with suppress(OSError, TypeError):  # it ended meanwhile, or begins
            found += [thread.name] * (where(thread.native_id) == place)
    return sorted(found)


@pytest.fixture
def at_fork(monkeypatch):
    """A library begins a thread in what is forked, as some do."""
    monkeypatch.setattr(sys.modules[__name__], "_begins", True)


_begins = False


def _begin_thread():
    if _begins:
        threading.Thread(target=time.sleep, args=(60,), daemon=True).start()


os.register_at_fork(after_in_child=_begin_thread)


@pytest.mark.usefixtures("at_fork")
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


def test_by_default_nothing_is_touched(monkeypatch):
    def touched(*_):
        raise AssertionError("somebody was moved")

    monkeypatch.setattr(os, "sched_setaffinity", touched)
    monkeypatch.setattr(os, "nice", touched)
    with make_loader(FakeDataset(64), engine="threads", num_workers=2) as loader:
        assert len(digests(loader)) == 8
    assert LoaderSettings().affinity == "none" and LoaderSettings().nice == 0


def test_cores_that_this_process_may_not_use_are_refused():
    allowed = cores_text(os.sched_getaffinity(0))
    with pytest.raises(ValueError) as told:
        LoaderSettings(affinity=[4097, LAST])
    assert str(told.value) == (
        f"loader.affinity: core 4097 given, this process may use {allowed}; type "
        f"'loader.affinity=[{LAST}]'"
    )
    with pytest.raises(ValueError, match=r"type loader\.affinity=none$"):
        LoaderSettings(affinity=[4097])
    with pytest.raises(ValueError, match=r"type loader\.affinity=none loader\.nice=0"):
        LoaderSettings(engine="ray", nice=3)
    for wrong in ([], [-1], "all", "auto"):
        with pytest.raises(ValueError, match=r"loader\.affinity is "):
            LoaderSettings(affinity=wrong)
    with pytest.raises(ValueError, match=r"loader\.nice is 20: .* less than or equal to 19"):
        LoaderSettings(nice=20)
