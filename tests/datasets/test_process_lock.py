"""Locks that no process can leave behind."""

import os
import signal

from datasets.process_lock import ThreadLock


def test_a_lock_that_was_held_is_free_in_a_forked_process():
    lock = ThreadLock()
    with lock:
        if (pid := os.fork()) == 0:
            signal.alarm(10)  # ends a process that waits for ever
            with lock:
                os._exit(7)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 7
