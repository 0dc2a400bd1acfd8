"""Child processes end, and cores are counted within a quota."""

from __future__ import annotations

import os
import select
import signal

import pytest

from penstock.core import processes
from penstock.core.processes import ChildProcess, pickled


def _answer(connection, word):
    connection.send((word, os.getppid()))
    signal.pause()


def test_a_process_runs_until_it_is_ended():
    child = ChildProcess()
    child.begin(pickled((_answer, ("here",)), what="x", remedy=""))
    assert child.connection.recv() == ("here", os.getpid())
    assert child.process.poll() is None
    child.end()
    assert child.process.poll() == -signal.SIGKILL
    child.end()


def test_a_child_ends_with_its_parent():
    ended, end = os.pipe()
    forked = os.fork()
    if not forked:
        try:
            child = ChildProcess(descriptors=[end])
            child.begin(pickled((_answer, ("here",)), what="x", remedy=""))
            child.connection.recv()
        finally:
            os._exit(0)
    os.close(end)
    os.waitpid(forked, 0)
    assert select.select([ended], [], [], 60)[0], "the child still runs"
    os.close(ended)


@pytest.mark.parametrize(
    ("quota", "cores"), [("max 100000", 6), ("150000 100000", 2), ("900000 100000", 6), (None, 6)]
)
def test_the_quota_of_a_container(tmp_path, monkeypatch, quota, cores):
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: range(6))
    monkeypatch.setattr(processes, "_QUOTA", tmp_path / "cpu.max")
    if quota is not None:
        (tmp_path / "cpu.max").write_text(f"{quota}\n")
    assert processes.usable_cores() == cores
