"""Locks that no process can leave behind."""

import os
import signal
import tempfile

import pytest

from penstock.core.locks import ProcessLock, ThreadLock


def test_a_lock_that_was_held_is_free_in_a_forked_process():
    lock = ThreadLock()
    with lock:
        if (pid := os.fork()) == 0:
            signal.alarm(10)  # ends a process that waits for ever
            with lock:
                os._exit(7)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 7


@pytest.fixture
def interrupts():
    """Interrupts every third of a millisecond while it is set."""
    armed = []

    def interrupt(*_):
        if armed:
            raise KeyboardInterrupt

    before = signal.signal(signal.SIGALRM, interrupt)
    signal.setitimer(signal.ITIMER_REAL, 0.001, 0.0003)
    yield armed
    armed.clear()
    signal.setitimer(signal.ITIMER_REAL, 0)
    signal.signal(signal.SIGALRM, before)


@pytest.mark.parametrize("kind", ["among threads", "among processes"])
def test_a_lock_that_an_interrupt_left_held_is_taken_again(interrupts, kind):
    with tempfile.TemporaryFile() as file:
        lock = ThreadLock() if kind == "among threads" else ProcessLock(file.fileno())
        passed_since = 0
        for _ in range(2000):
            passed = 0
            try:
                interrupts.append(True)
                while True:
                    with lock:
                        passed += 1
            except KeyboardInterrupt:
                interrupts.clear()
            passed_since = 0 if passed else passed_since + 1
            assert passed_since < 100, "it waits for ever, from one interrupt to the next"
