"""Processes are ended at once, whoever was forked beside them."""

from __future__ import annotations

import os
import signal

from penstock.core import processes
from penstock.core.processes import ChildProcess, process_context


def _wait_for_its_end(theirs) -> None:
    signal.pause()


def test_a_fork_is_ended_while_one_of_the_same_moment_goes_on(monkeypatch):
    """Which has all that was open in that moment: among it what tells of the other's end."""
    monkeypatch.setattr(processes, "_REAP_S", 1000.0)
    fork, beside = os.fork, []

    def forks() -> int:
        if not beside:
            beside.append(fork())
            if beside == [0]:
                signal.pause()
        return fork()

    monkeypatch.setattr(os, "fork", forks)
    child = ChildProcess(process_context("fork"), _wait_for_its_end)
    try:
        child.end()
        assert not child.process.is_alive()
    finally:
        os.kill(beside[0], signal.SIGKILL)
        os.waitpid(beside[0], 0)
