"""Child processes end, and cores are counted within a quota."""

from __future__ import annotations

import os
import signal
import time

import pytest

from penstock.core import processes
from penstock.core.processes import ChildProcess, ProcessEndedError, call_in_process, pickled


def _answer(connection, word):
    connection.send((word, os.getppid()))
    signal.pause()


def test_a_process_is_called_and_ended():
    child = ChildProcess()
    child.begin(pickled((_answer, ("here",)), what="x", remedy=""))
    assert child.connection.recv() == ("here", os.getpid())
    assert child.exit_code is None
    child.end()
    assert child.exit_code == -signal.SIGKILL
    child.end()


def _fails(how):
    if how == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    raise LookupError("on purpose")


def test_a_call_in_a_process(capfd):
    assert call_in_process(os.path.join, "a", "b") == "a/b"
    with pytest.raises(ProcessEndedError, match="exit code 1"):
        call_in_process(_fails, "raise")
    assert "LookupError: on purpose" in capfd.readouterr().err
    with pytest.raises(ProcessEndedError, match="signal SIGKILL"):
        call_in_process(_fails, "kill")


def test_a_child_ends_with_its_parent():
    forked = os.fork()
    if not forked:
        try:
            child = ChildProcess()
            child.begin(pickled((_answer, ("here",)), what="x", remedy=""))
            child.connection.recv()
        finally:
            os._exit(0)
    os.waitpid(forked, 0)
    until = time.monotonic() + 60
    while any(_is_child_program(pid, forked) for pid in os.listdir("/proc") if pid.isdigit()):
        assert time.monotonic() < until
        time.sleep(0.02)


def _is_child_program(pid, parent):
    try:
        with open(f"/proc/{pid}/cmdline", "rb") as file:
            words = file.read().split(b"\0")
    except OSError:
        return False
    return b"penstock.core.processes.child" in words and str(parent).encode() in words


@pytest.mark.parametrize(
    ("files", "cores"),
    [
        ({"cpu.max": "max 100000"}, None),
        ({"cpu.max": "150000 100000"}, 2),
        ({"cpu/cpu.cfs_quota_us": "-1", "cpu/cpu.cfs_period_us": "100000"}, None),
        ({"cpu/cpu.cfs_quota_us": "300000", "cpu/cpu.cfs_period_us": "100000"}, 3),
        ({}, None),
    ],
)
def test_the_quota_of_a_container(tmp_path, files, cores):
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text + "\n")
    assert processes._quota_of(tmp_path) == cores
