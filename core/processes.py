"""Child processes: interpreters of their own that end with the process that started them."""

from __future__ import annotations

import os
import pickle
import signal
import socket
import struct
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from multiprocessing import connection
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

START_S = 60.0
"""A start that takes longer, and longer than an answer may, counts as hanging."""

_REAP_S = 10.0


class ProcessEndedError(RuntimeError):
    """A process ended before it answered; says how."""


def pickled(value: Any, *, what: str, remedy: str) -> bytes:
    """Pickle a value for another process; objects of the main module travel by value.

    Args:
        value: The value.
        what: Name of the value in messages.
        remedy: What to do where the value does not pickle.

    Raises:
        ValueError: The value does not pickle.
    """
    import cloudpickle

    try:
        data: bytes = cloudpickle.dumps(value)
    except (TypeError, AttributeError, RuntimeError, pickle.PicklingError) as error:
        if "pickle" not in str(error) and "inheritance" not in str(error):
            raise
        raise ValueError(f"{what} cannot be sent to processes: {error}; {remedy}") from error
    return data


class ChildProcess:
    """A Python process and the connection to it.

    It does nothing before `begin`, so that it can be started before there is something to do.

    Args:
        module: Module that the process runs.
        message_timeout_s: Reading or writing a message fails after so long.
        starter_stays: The calling thread lives until the process is ended.
        descriptors: File descriptors that the process inherits.

    Attributes:
        connection: Our end.
        sentinel: Can be read when the process has ended.
    """

    def __init__(
        self,
        *,
        module: str = "penstock.core.child",
        message_timeout_s: float | None = None,
        starter_stays: bool = False,
        descriptors: Sequence[int] = (),
    ) -> None:
        self._starter = os.getpid()
        ours, theirs = socket.socketpair()
        with theirs:
            command = [sys.executable, "-P", "-m", module, str(theirs.fileno())]
            command += [str(self._starter), str(int(starter_stays))]
            try:
                with _signals_blocked():  # until the process can take care of them
                    self.process = subprocess.Popen(
                        command,
                        stdin=subprocess.DEVNULL,
                        pass_fds=[theirs.fileno(), *descriptors],
                        env={**os.environ, "NO_ALBUMENTATIONS_UPDATE": "1"},
                    )
            except BaseException:
                ours.close()
                raise
        self.connection = Connection(ours.detach())
        self.sentinel: Any = self.connection
        with suppress(AttributeError, OSError):  # not Linux, or it has ended
            self.sentinel = os.pidfd_open(self.process.pid)
        self._message_timeout_s = message_timeout_s

    def begin(self, data: bytes) -> None:
        """Let it call a function.

        Args:
            data: Pickled pair of a function and its arguments; the function is called with the
                other end of the connection before the arguments.
        """
        if self._message_timeout_s is not None:
            _limit_waiting(self.connection, start_patience(self._message_timeout_s))
        with suppress(OSError):  # it ended or hangs, which its reader notices
            self.connection.send((sys.path, sys.argv))
            self.connection.send_bytes(data)
        if self._message_timeout_s is not None:
            _limit_waiting(self.connection, self._message_timeout_s)

    @property
    def pid(self) -> int:
        """Its process id."""
        return self.process.pid

    @property
    def is_own(self) -> bool:
        """Whether this process started it, rather than one that this process is a fork of."""
        return self._starter == os.getpid()

    @property
    def exit_code(self) -> int | None:
        """Its exit code, negative for a signal; None while it runs."""
        return self.process.poll()

    def end(self) -> None:
        """Kill it, if it still runs, and wait until it is gone; twice does no harm.

        A fork of the process that started it only closes its copy of the connection.
        """
        self.connection.close()
        sentinel, self.sentinel = self.sentinel, self.connection
        if isinstance(sentinel, int):
            os.close(sentinel)
        if not self.is_own:
            return
        self.process.kill()
        with suppress(subprocess.TimeoutExpired):  # it is within the kernel
            self.process.wait(_REAP_S)


def call_in_process(function: Callable[..., Any], *arguments: Any) -> Any:
    """Call a function in a process of its own.

    Returns:
        What it returns.

    Raises:
        ProcessEndedError: The process died, or the function raised, whose traceback it printed.
    """
    data = pickled((_answer_call, (function, arguments)), what=f"{function}", remedy="")
    with interrupts_held():
        child = ChildProcess()
    try:
        child.begin(data)
        connection.wait([child.connection, child.sentinel])
        try:
            return child.connection.recv()
        except (EOFError, ConnectionError):
            child.process.wait(_REAP_S)
            raise ProcessEndedError(ending_of(child.exit_code or 0)) from None
    finally:
        child.end()


def _answer_call(theirs: Connection, function: Callable[..., Any], given: Sequence[Any]) -> None:
    answer = function(*given)
    with suppress(BrokenPipeError):  # the parent ended
        theirs.send(answer)


def ending_of(code: int) -> str:
    """Say how a process ended, by its exit code: ``exit code 3`` or ``signal SIGKILL``."""
    return f"exit code {code}" if code >= 0 else f"signal {signal_name(-code)}"


def signal_name(number: int) -> str:
    """The name of a signal; real-time signals have none of their own."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"SIGRTMIN{number - signal.SIGRTMIN:+d}"


@contextmanager
def interrupts_held() -> Iterator[None]:
    """Start threads and processes with SIGINT blocked: Ctrl-C is for the main thread alone.

    A Ctrl-C meanwhile arrives when the block is left, so that what was started is known to
    its owner. Blocking the signal does not do that: another thread may receive it, and
    Python lets the main thread handle it all the same.
    """
    handler = signal.getsignal(signal.SIGINT)
    is_main = threading.current_thread() is threading.main_thread() and handler is not None
    came: list[int] = []
    if is_main:
        signal.signal(signal.SIGINT, lambda number, frame: came.append(number))
    held = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, held)
        if is_main:
            signal.signal(signal.SIGINT, handler)
            if came:
                signal.raise_signal(signal.SIGINT)


@contextmanager
def _signals_blocked() -> Iterator[None]:
    held = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT, signal.SIGTERM})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, held)


def start_patience(timeout_s: float) -> float:
    """Seconds that a start may take, where an answer may take `timeout_s`."""
    return max(START_S, timeout_s)


def _limit_waiting(channel: Connection, timeout_s: float) -> None:
    """Let reads and writes on a connection fail where a stopped process would block them."""
    seconds, rest = divmod(timeout_s, 1)
    limit = struct.pack("ll", int(seconds), int(rest * 1e6))
    its_socket = socket.socket(fileno=os.dup(channel.fileno()))  # the connection behind is the same
    with its_socket:
        its_socket.setblocking(True)  # despite a program's socket.setdefaulttimeout
        its_socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, limit)
        its_socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, limit)


_MOST_WORKERS = 32
"""More workers than this are a choice: each holds batches in memory."""


def usable_cores() -> int:
    """Count the cores that this process may run on: its affinity, within its container's quota."""
    cores = len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count() or 1
    quota = _quota_of(Path("/sys/fs/cgroup"))
    return cores if quota is None else max(1, min(cores, quota))


def _quota_of(cgroup: Path) -> int | None:
    """Return the cores of a container's quota, rounded up; None without a quota."""
    with suppress(OSError, ValueError):
        quota, period = (cgroup / "cpu.max").read_text().split()
        return None if quota == "max" else -(-int(quota) // int(period))
    with suppress(OSError, ValueError):  # the first version of cgroups
        quota, period = (
            (cgroup / "cpu" / f"cpu.cfs_{name}_us").read_text() for name in ("quota", "period")
        )
        return None if int(quota) <= 0 else -(-int(quota) // int(period))
    return None


def default_workers() -> int:
    """Count workers for ``loader.num_workers=auto``: this rank's share of the cores, at most 32."""
    return max(1, min(usable_cores() // local_ranks(), _MOST_WORKERS))


def local_ranks() -> int:
    """Count the ranks of this job on this machine."""
    return max(1, int(os.environ.get("LOCAL_WORLD_SIZE", "1")))
