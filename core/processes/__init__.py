"""Child processes: new interpreters that end with the process that started them."""

from __future__ import annotations

import ctypes
import os
import pickle
import signal
import socket
import struct
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

START_S = 60.0
"""Time limit of a start, if longer than the limit of an answer."""

_REAP_S = 10.0


def pickled(value: Any, *, what: str, remedy: str) -> bytes:
    """Pickle a value, the main module's objects by content; ValueError with `what` and `remedy`."""
    import cloudpickle

    try:
        data: bytes = cloudpickle.dumps(value)
    except (TypeError, AttributeError, RuntimeError, pickle.PicklingError) as error:
        raise ValueError(f"{what} cannot be sent to processes: {error}; {remedy}") from error
    return data


class ChildProcess:
    """A Python process and the connection to it; idle until `begin`.

    Args:
        module: Module that the process runs.
        message_timeout_s: Time limit of sending or receiving a message.
        descriptors: File descriptors that the process inherits.

    Attributes:
        sentinel: Becomes readable when the process ends.
        starter: Process id of the process that started it, which may have forked.
    """

    def __init__(
        self,
        *,
        module: str = "penstock.core.processes.child",
        message_timeout_s: float | None = None,
        descriptors: Sequence[int] = (),
    ) -> None:
        self.starter = os.getpid()
        ours, theirs = socket.socketpair()
        with theirs:
            numbers = [str(theirs.fileno()), str(self.starter)]
            command = [sys.executable, "-P", "-m", module, *numbers]
            with _blocked(signal.SIGINT, signal.SIGTERM):  # until the process has handlers
                self.process = subprocess.Popen(
                    command,
                    stdin=subprocess.DEVNULL,
                    pass_fds=[theirs.fileno(), *descriptors],
                    env={**os.environ, "NO_ALBUMENTATIONS_UPDATE": "1"},
                )
        self.pid = self.process.pid
        self.connection = Connection(ours.detach())
        self.sentinel: Any = self.connection
        with suppress(AttributeError, OSError):  # not Linux, or the process has ended
            self.sentinel = os.pidfd_open(self.process.pid)
        self._message_timeout_s = message_timeout_s

    def begin(self, data: bytes) -> None:
        """Let the process call a pickled function with its connection and pickled arguments."""
        if self._message_timeout_s is not None:
            _limit_waiting(self.connection, start_patience(self._message_timeout_s))
        with suppress(OSError):  # the reader notices a process that ended or hangs
            self.connection.send((sys.path, sys.argv))
            self.connection.send_bytes(data)
        if self._message_timeout_s is not None:
            _limit_waiting(self.connection, self._message_timeout_s)

    def end(self) -> None:
        """Kill the process and wait for its end; in a fork, only close the connection."""
        self.connection.close()
        sentinel, self.sentinel = self.sentinel, self.connection
        if isinstance(sentinel, int):
            os.close(sentinel)
        if self.starter != os.getpid():
            return
        self.process.kill()
        with suppress(subprocess.TimeoutExpired):  # the process is stuck in the kernel
            self.process.wait(_REAP_S)


def ending_of(code: int) -> str:
    """Describe how a process ended, by its exit code: ``exit code 3`` or ``signal 9 (Killed)``."""
    return f"exit code {code}" if code >= 0 else f"signal {-code} ({signal.strsignal(-code)})"


@contextmanager
def interrupts_held() -> Iterator[None]:
    """Hold back Ctrl-C while threads and processes start, until their owner knows them.

    Blocking the signal alone is not enough: another thread may receive it, and Python still runs
    the handler in the main thread.
    """
    handler = signal.getsignal(signal.SIGINT)
    is_main = threading.current_thread() is threading.main_thread() and handler is not None
    came: list[int] = []
    if is_main:
        signal.signal(signal.SIGINT, lambda number, frame: came.append(number))
    try:
        with _blocked(signal.SIGINT):
            yield
    finally:
        if is_main:
            signal.signal(signal.SIGINT, handler)
            if came:
                signal.raise_signal(signal.SIGINT)


@contextmanager
def _blocked(*signals: signal.Signals) -> Iterator[None]:
    held = signal.pthread_sigmask(signal.SIG_BLOCK, signals)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, held)


def leave_to_parent(inherited: object) -> None:
    """Keep an inherited object until this forked process ends, and skip its finalizers.

    They would end the parent's workers, or say goodbye to a server over the parent's socket.
    """
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(inherited))


def start_patience(timeout_s: float) -> float:
    """Return the time limit of a start, in seconds, for answers limited to `timeout_s`."""
    return max(START_S, timeout_s)


def _limit_waiting(channel: Connection, timeout_s: float) -> None:
    """Limit the time of reads and writes on a connection, which a stopped process would block."""
    seconds, rest = divmod(timeout_s, 1)
    limit = struct.pack("ll", int(seconds), int(rest * 1e6))
    its_socket = socket.socket(fileno=os.dup(channel.fileno()))  # shares the connection
    with its_socket:
        its_socket.setblocking(True)  # despite a program's socket.setdefaulttimeout
        its_socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, limit)
        its_socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, limit)


_MOST_WORKERS = 32
"""Default limit of workers; each has batches in memory."""


_QUOTA = Path("/sys/fs/cgroup/cpu.max")


def usable_cores() -> int:
    """Count the cores of this process: its affinity, within its container's quota."""
    cores = len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count() or 1
    with suppress(OSError, ValueError):  # ValueError: no quota ("max")
        quota, period = map(int, _QUOTA.read_text().split())
        return max(1, min(cores, -(-quota // period)))
    return cores


def default_workers() -> int:
    """Return the workers for ``num_workers=auto``: this rank's share of the cores, up to 32."""
    return max(1, min(usable_cores() // local_ranks(), _MOST_WORKERS))


def local_ranks() -> int:
    """Return the number of this job's ranks on this machine."""
    return max(1, int(os.environ.get("LOCAL_WORLD_SIZE", "1")))
