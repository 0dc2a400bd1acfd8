"""Child processes: new interpreters that end with the process that started them."""

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
"""Time limit of a start, if longer than the limit of an answer."""

_REAP_S = 10.0


class ProcessEndedError(RuntimeError):
    """A process ended before it answered."""


def pickled(value: Any, *, what: str, remedy: str) -> bytes:
    """Pickle a value for another process; objects of the main module travel by value.

    Args:
        value: The value.
        what: Name of the value in messages.
        remedy: Remedy in the message if the value does not pickle.

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
    """A Python process and the connection to it; idle until `begin`.

    Args:
        module: Module that the process runs.
        message_timeout_s: Time limit of sending or receiving a message.
        starter_stays: The calling thread lives until the process ends.
        descriptors: File descriptors that the process inherits.

    Attributes:
        connection: The parent's end of the connection.
        sentinel: Becomes readable when the process ends.
    """

    def __init__(
        self,
        *,
        module: str = "penstock.core.processes.child",
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
                with _signals_blocked():  # until the process has handlers
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
        with suppress(AttributeError, OSError):  # not Linux, or the process has ended
            self.sentinel = os.pidfd_open(self.process.pid)
        self._message_timeout_s = message_timeout_s

    def begin(self, data: bytes) -> None:
        """Let the process call a function.

        Args:
            data: Pickled pair of a function and its arguments. The function receives the child's
                end of the connection before the arguments.
        """
        if self._message_timeout_s is not None:
            _limit_waiting(self.connection, start_patience(self._message_timeout_s))
        with suppress(OSError):  # the reader notices a process that ended or hangs
            self.connection.send((sys.path, sys.argv))
            self.connection.send_bytes(data)
        if self._message_timeout_s is not None:
            _limit_waiting(self.connection, self._message_timeout_s)

    @property
    def pid(self) -> int:
        """Process id."""
        return self.process.pid

    @property
    def is_own(self) -> bool:
        """Whether this process started it; False in a fork of the process that did."""
        return self._starter == os.getpid()

    @property
    def exit_code(self) -> int | None:
        """Exit code, negative for a signal; None while the process runs."""
        return self.process.poll()

    def end(self) -> None:
        """Kill the process and wait for its end. Safe to call twice.

        In a fork of the process that started it, only close the connection.
        """
        self.connection.close()
        sentinel, self.sentinel = self.sentinel, self.connection
        if isinstance(sentinel, int):
            os.close(sentinel)
        if not self.is_own:
            return
        self.process.kill()
        with suppress(subprocess.TimeoutExpired):  # the process is stuck in the kernel
            self.process.wait(_REAP_S)


def call_in_process(function: Callable[..., Any], *arguments: Any) -> Any:
    """Call a function in a new process; return its result.

    Raise ProcessEndedError if the process died or the function raised, with a printed traceback.
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
    """Describe how a process ended, by its exit code: ``exit code 3`` or ``signal SIGKILL``."""
    return f"exit code {code}" if code >= 0 else f"signal {signal_name(-code)}"


def signal_name(number: int) -> str:
    """Return the name of a signal; real-time signals get ``SIGRTMIN+n``."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"SIGRTMIN{number - signal.SIGRTMIN:+d}"


@contextmanager
def interrupts_held() -> Iterator[None]:
    """Block SIGINT while threads and processes start: only the main thread handles Ctrl-C.

    A Ctrl-C in between arrives after the block, when the owner knows what it started. Blocking the
    signal alone is not enough: another thread may receive it, and Python still runs the handler in
    the main thread.
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


def usable_cores() -> int:
    """Count the cores of this process: its affinity, within its container's quota."""
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
    """Return the workers for ``num_workers=auto``: this rank's share of the cores, up to 32."""
    return max(1, min(usable_cores() // local_ranks(), _MOST_WORKERS))


def local_ranks() -> int:
    """Return the number of this job's ranks on this machine."""
    return max(1, int(os.environ.get("LOCAL_WORLD_SIZE", "1")))
