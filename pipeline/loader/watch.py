"""Watching workers: one that died or hangs is noticed at once and named."""

from __future__ import annotations

import queue
import signal
import time
from collections.abc import Sequence
from multiprocessing.process import BaseProcess
from typing import Any

from pipeline.loader.starting import why_no_processes

_TICK_S = 0.5


class LoaderTimeoutError(RuntimeError):
    """No batch came in time."""


class LoaderClosedError(RuntimeError):
    """The loader was closed while another thread waited for a batch."""

    def __init__(self) -> None:
        super().__init__("loader: it was closed while another thread waited for a batch")


class WatchedQueue:
    """A queue of results that stops waiting when a worker died or the deadline passed.

    torch's own wait looks at its workers only when its timeout is over, and that timeout is
    the user's patience with a slow batch.

    Args:
        results: The queue to wait on.
        workers: The processes that fill it.
        timeout_s: Seconds after which waiting is given up.
    """

    def __init__(self, results: Any, workers: Sequence[BaseProcess], timeout_s: float) -> None:
        self._results = results
        self._workers = workers
        self._timeout_s = timeout_s
        self._closed = False

    def end(self) -> None:
        """The workers are ended on purpose: let whoever waits know."""
        self._closed = True

    def get(self, block: bool = True, timeout: float | None = None) -> Any:
        """The next result; `queue.Empty` if a worker died, an error after the deadline."""
        deadline = time.monotonic() + self._timeout_s
        while True:
            remaining_s = deadline - time.monotonic()
            try:
                return self._results.get(timeout=max(0.0, min(_TICK_S, remaining_s)))
            except queue.Empty:
                if self._closed:
                    raise LoaderClosedError from None
                if not all(worker.is_alive() for worker in self._workers):
                    raise
                if remaining_s <= 0:
                    raise LoaderTimeoutError(
                        f"loader: no batch within timeout_s={self._timeout_s:g} s, and all "
                        f"{len(self._workers)} workers are alive; raise loader.timeout_s if "
                        f"reading is that slow, or find where it hangs with loader.engine=inline"
                    ) from None

    def __getattr__(self, name: str) -> Any:
        return getattr(self._results, name)


def describe_death(workers: Sequence[BaseProcess]) -> str | None:
    """One line about the worker that died, or None if all are alive."""
    for worker in workers:
        worker.join(timeout=0)
        if worker.is_alive():
            continue
        code = worker.exitcode
        if code is not None and code < 0:
            how = f"was killed by signal {-code} ({_signal_name(-code)})"
        else:
            how = f"ended with exit code {code}"
        return f"loader: worker process {worker.pid} {how}; {_cause(code)}"
    return None


def ending_of(code: int) -> str:
    """How a process ended, by its exit code: ``exit code 3`` or ``signal SIGKILL``."""
    return f"exit code {code}" if code >= 0 else f"signal {_signal_name(-code)}"


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:  # a real-time signal; these have no names of their own
        return f"SIGRTMIN{number - signal.SIGRTMIN:+d}"


def _cause(code: int | None) -> str:
    if code == -signal.SIGKILL:
        return (
            "often the system ran out of memory: lower loader.num_workers, "
            "loader.prefetch_factor or loader.batch_size"
        )
    if code == -signal.SIGBUS:
        return (
            "often /dev/shm is full: enlarge it (docker run --shm-size=8g) or lower "
            "loader.prefetch_factor or loader.batch_size"
        )
    if code in (-signal.SIGSEGV, -signal.SIGABRT, -signal.SIGFPE, -signal.SIGILL):
        return (
            "a native library crashed, often over one damaged file: find it with "
            "loader.engine=inline"
        )
    if code is not None and code > 0:
        if (reason := why_no_processes("spawn")) is not None:
            return f"its traceback stands above; {reason}"
        return (
            "its traceback stands above, if it had one; if it could not start, try "
            "loader.engine=inline"
        )
    return "something outside of this program ended it"
