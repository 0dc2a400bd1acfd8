"""A fork waits for threads that are inside a library, and for no other."""

import os
import threading
import time

from datasets.fork_gate import ForkGate

GATE = ForkGate(most_s=20)
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
            leave.wait(20)

    thread = threading.Thread(target=stay)
    thread.start()
    assert entered.wait(20)
    return thread, leave


def test_a_fork_waits_for_a_thread_inside():
    thread, leave = inside(GATE)
    done = []
    forking = threading.Thread(target=lambda: done.append(fork()))
    forking.start()
    time.sleep(0.05)
    assert not done
    leave.set()
    forking.join(20)
    thread.join(20)
    assert done == [7]
    assert fork() == 7


def test_a_fork_waits_no_longer_than_it_is_told():
    thread, leave = inside(HASTY)
    assert fork() == 7
    leave.set()
    thread.join(20)
