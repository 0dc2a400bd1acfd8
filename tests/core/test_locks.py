"""Locks that no process can leave behind."""

import os
import signal
import tempfile
import threading
import time

import pytest

from penstock.core.locks import ForkGate, ProcessLock, ThreadLock


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


GATE = ForkGate(most_s=120)
HASTY = ForkGate(most_s=0.05)


def fork():
    if (pid := os.fork()) == 0:
        with GATE.kept_off():
            os._exit(7)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def inside(gate):
    """A thread inside, and what lets it go."""
    entered, leave = threading.Event(), threading.Event()

    def stay():
        with gate.kept_off():
            entered.set()
            leave.wait(120)

    thread = threading.Thread(target=stay)
    thread.start()
    assert entered.wait(120)
    return thread, leave


def test_a_fork_waits_for_a_thread_inside():
    thread, leave = inside(GATE)
    done = []
    forking = threading.Thread(target=lambda: done.append(fork()))
    forking.start()
    time.sleep(0.05)
    assert not done
    leave.set()
    forking.join(120)
    thread.join(120)
    assert done == [7]
    assert fork() == 7


def test_a_fork_waits_no_longer_than_it_is_told():
    thread, leave = inside(HASTY)
    assert fork() == 7
    leave.set()
    thread.join(120)


def test_threads_that_are_inside_by_turns_keep_no_fork_waiting():
    stop = threading.Event()

    def by_turns():
        while not stop.is_set():
            with GATE.kept_off(), GATE.kept_off():
                time.sleep(0.005)

    threads = [threading.Thread(target=by_turns) for _ in range(3)]
    for thread in threads:
        thread.start()
    began = time.monotonic()
    assert [fork() for _ in range(20)] == [7] * 20
    took_s = time.monotonic() - began
    stop.set()
    for thread in threads:
        thread.join(120)
    assert took_s < 100, "one was kept waiting as long as may be"
