"""A library with locks of its own, used by threads of a process that forks."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Iterator


class ForkGate:
    """Keeps a fork waiting while threads are inside the library.

    A child that inherited the library's mutexes while another thread held one would wait for it
    for ever.

    Args:
        most_s: How long a fork waits at most.
    """

    def __init__(self, *, most_s: float) -> None:
        self._most_s = most_s
        self._turn = threading.Condition()
        self._inside = 0
        os.register_at_fork(
            before=self._wait, after_in_parent=self._go_on, after_in_child=self._renew
        )

    @contextlib.contextmanager
    def kept_off(self) -> Iterator[None]:
        """No fork of another thread happens inside."""
        with self._turn:
            self._inside += 1
        try:
            yield
        finally:
            with self._turn:
                self._inside -= 1
                self._turn.notify_all()

    def _wait(self) -> None:
        self._turn.acquire()
        self._turn.wait_for(lambda: not self._inside, self._most_s)

    def _go_on(self) -> None:
        self._turn.release()

    def _renew(self) -> None:
        self._turn, self._inside = threading.Condition(), 0
