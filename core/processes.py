"""Child processes: how they start, are watched, and end with the process that started them."""

from __future__ import annotations

import ast
import copy
import ctypes
import multiprocessing
import os
import signal
import socket
import struct
import sys
import threading
import time
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from multiprocessing import connection, forkserver, process, resource_tracker, util
from multiprocessing.context import ForkProcess, ForkServerProcess, SpawnProcess
from multiprocessing.process import BaseProcess, current_process
from pathlib import Path
from types import MethodType
from typing import Any

from penstock.core.files import own_folder

START_S = 60.0
"""A start that takes longer, and longer than an answer may, counts as hanging."""

_PRELOADED_IF_USED = ("albumentations", "lmdb", "pyarrow", "PIL.Image")
_MOST_SOCKET_FOLDER = 85  # bytes: a socket's path has 107 at most
_LOOK_S = 0.05
_END_S = 5.0
_REAP_S = 10.0
_PR_SET_PDEATHSIG = 1

_own_server: int | None = None  # this process, if it started the server; its successors count too


class ProcessEndedError(RuntimeError):
    """A process ended before it answered; says how."""


class ChildProcess:
    """A process and the connection to it.

    Args:
        context: The multiprocessing context that says how it starts.
        target: Called there with the other end of the connection and `arguments`.
        arguments: What it is given.
        message_timeout_s: Reading or writing a message fails after so long: the process is
            stopped in the middle of it.

    Attributes:
        connection: Our end.
        process: The process.

    Raises:
        Exception: What pickling the arguments raises; EOFError or ConnectionError where the
            fork server ended.
    """

    def __init__(
        self,
        context: Any,
        target: Callable[..., None],
        *arguments: Any,
        message_timeout_s: float | None = None,
    ) -> None:
        self._starter = os.getpid()
        self.connection, theirs = context.Pipe()
        self.process = context.Process(target=target, args=(theirs, *arguments), daemon=True)
        try:
            self.process.start()
        except BaseException:
            self.connection.close()
            raise
        finally:
            theirs.close()
        if message_timeout_s is not None:
            _limit_waiting(self.connection, message_timeout_s)

    @property
    def pid(self) -> int | None:
        """Its process id."""
        return self.process.pid

    @property
    def is_own(self) -> bool:
        """Whether this process started it, rather than one that this process is a fork of."""
        return self._starter == os.getpid()

    def end(self) -> None:
        """Kill it, if it still runs, and wait until it is gone and writes nowhere.

        A fork of the process that started it only closes its copy of the connection.
        """
        self.connection.close()
        if not self.is_own:
            return
        with suppress(ProcessLookupError):
            self.process.kill()
        deadline_s = time.monotonic() + _REAP_S
        while self.process.is_alive():  # its sentinel may be held by one forked at the same time
            if time.monotonic() > deadline_s:  # whoever is to tell of its end does not
                end_hanging_server()
                break
            self.process.join(_LOOK_S)


def call_in_process(function: Callable[..., Any], *arguments: Any) -> Any:
    """Call a function in a spawned process of its own.

    Returns:
        What it returns.

    Raises:
        ProcessEndedError: The process died, or the function raised, whose traceback it printed.
    """
    with interrupts_held():
        child = ChildProcess(process_context("spawn"), _answer_call, function, arguments)
    try:
        connection.wait([child.connection, child.process.sentinel])
        try:
            return child.connection.recv()
        except (EOFError, ConnectionError):
            child.process.join(_REAP_S)
            raise ProcessEndedError(ending_of(child.process.exitcode or 0)) from None
    finally:
        child.end()


def _answer_call(theirs: Any, function: Callable[..., Any], arguments: Sequence[Any]) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the parent, who ends us
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    end_with_parent()
    answer = function(*arguments)
    with suppress(BrokenPipeError):  # nobody asks any more
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


def end_with_parent(*, starter_stays: bool = False) -> None:
    """End this process when the one that it works for is gone, however early that is.

    Args:
        starter_stays: The thread that started this process lives until its process ends. Then
            the system ends this one too, even in the middle of a call.
    """
    parent = multiprocessing.parent_process()
    if starter_stays:
        if sys.platform == "linux":
            ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        # A server is watched by the main process. A forked process has a copy of the
        # connection's other end, and would wait for ever.
        has_server = forkserver.get_inherited_fds() is not None
        if parent is not None and not has_server and os.getppid() != parent.pid:
            os._exit(0)
    if parent is None:
        return

    def wait() -> None:
        connection.wait([parent.sentinel])
        os._exit(1)

    threading.Thread(target=wait, name="end with parent", daemon=True).start()


def leave_signals_to_parent() -> None:
    """Take no heed of Ctrl-C and SIGTERM, which may go to every process of a job.

    The main process needs the batches of its last step, and ends its workers itself.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    # Neither ignored nor blocked: commands that a data set starts would inherit that.
    signal.signal(signal.SIGTERM, lambda number, frame: None)
    signal.siginterrupt(signal.SIGTERM, False)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})


@contextmanager
def interrupts_held() -> Iterator[None]:
    """Start threads and processes with SIGINT blocked: Ctrl-C is for the main thread alone.

    A Ctrl-C meanwhile arrives when the block is left, so that what was started is known to
    whoever ends it. Blocking the signal does not do that: another thread may receive it, and
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
def _sigterm_blocked() -> Iterator[None]:
    """Start processes with SIGTERM blocked, until they can take care of it themselves."""
    held = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, held)


def process_context(name: str, preload: Sequence[str] = ()) -> Any:
    """The multiprocessing context of a start method.

    What it starts while SIGINT is blocked, as by `interrupts_held`, starts with it blocked: no
    Ctrl-C reaches a process before it can ignore it.

    Args:
        name: ``forkserver``, ``spawn`` or ``fork``.
        preload: Modules that a fork server imports when it starts; those that are not
            installed are passed over.
    """
    context = multiprocessing.get_context(name)
    if name != "fork":
        _start_resource_tracker()
        _name_what_may_stay()
    if name == "forkserver":
        os.environ.setdefault("NO_ALBUMENTATIONS_UPDATE", "1")
        used = [module for module in _PRELOADED_IF_USED if module in sys.modules]
        context.set_forkserver_preload([*preload, *used, "penstock.core.frozen"])
    return context


def worker_context(name: str, preload: Sequence[str] = ()) -> Any:
    """`process_context` whose processes are deaf to SIGTERM at first.

    They are to call `leave_signals_to_parent` and `end_with_parent`.
    """
    context = copy.copy(process_context(name, preload))
    context.Process = _PROCESSES[name]
    return context


class _Worker(BaseProcess):
    """A process that is started with SIGTERM blocked, and killed where others are terminated.

    Multiprocessing, when the main process ends, and torch terminate what still runs and wait
    for it: for a worker that takes no heed of SIGTERM they would wait for ever.
    """

    def start(self) -> None:
        with _sigterm_blocked():
            super().start()
        running: Any = vars(self)["_popen"]
        # Through a proxy: what refers to itself would keep its descriptors until it is collected.
        running.terminate = MethodType(type(running).kill, weakref.proxy(running))


class _ForkWorker(_Worker, ForkProcess):
    pass


class _ForkServerWorker(_Worker, ForkServerProcess):
    pass


class _SpawnWorker(_Worker, SpawnProcess):
    pass


_PROCESSES = {"fork": _ForkWorker, "forkserver": _ForkServerWorker, "spawn": _SpawnWorker}


def _unblock_for_others(_: object) -> None:
    """Let processes of other people's, forked from the same server, be terminated as usual."""
    if not isinstance(current_process(), _Worker):
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})


# Called in every process that multiprocessing forks, from the server too, which imports this.
util.register_after_fork(_unblock_for_others, _unblock_for_others)


def _start_resource_tracker() -> None:
    """Start the process that multiprocessing starts before any other one.

    Doing so it unblocks SIGINT, whether that was blocked before or not, and what is started next
    would be open to Ctrl-C amid its imports.
    """
    held = signal.pthread_sigmask(signal.SIG_BLOCK, ())
    try:
        resource_tracker.ensure_running()
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, held)


def _name_what_may_stay() -> None:
    """Let what multiprocessing leaves behind if we are killed be known as ours, to be removed."""
    if multiprocessing.parent_process() is None:  # the others have it from there
        settings: dict[str, Any] = vars(current_process())["_config"]
        folder = own_folder()
        settings["semprefix"] = f"/{folder.name}"
        if len(os.fsencode(folder)) <= _MOST_SOCKET_FOLDER:
            settings.setdefault("tempdir", str(folder))


def start_server(name: str, preload: Sequence[str] = ()) -> None:
    """Let the server that processes are forked from import what they need, in the background."""
    if name == "forkserver":
        process_context(name, preload)
        with interrupts_held():
            ensure_server(name)


def ensure_server(name: str) -> int | None:
    """Start the server that processes are forked from, if a start method has one.

    Returns:
        Its process id.
    """
    global _own_server
    if name != "forkserver":
        return None
    server: Any = forkserver._forkserver
    before = server._forkserver_pid
    with _sigterm_blocked():
        forkserver.ensure_running()
    pid: int = server._forkserver_pid
    if pid != before:
        _own_server = os.getpid()
    return pid


def _leave_children_to_parent() -> None:
    """Let a forked process neither end its parent's processes nor use its parent's server.

    At its exit multiprocessing ends all daemons that it knows of, and a process cannot wait for a
    server that it did not start.
    """
    vars(process)["_children"].clear()
    server: Any = forkserver._forkserver
    if server._forkserver_pid is not None:
        os.close(server._forkserver_alive_fd)
        server.__init__()


os.register_at_fork(after_in_child=_leave_children_to_parent)


def has_server_ended(pid: int) -> bool:
    """Whether a server that answers no more has ended or does so soon.

    It closes its connections a moment before; whoever asks for a process in that moment still
    meets it, since multiprocessing starts another server only after the end.
    """
    deadline = time.monotonic() + _END_S
    while time.monotonic() < deadline:
        with suppress(ChildProcessError):  # somebody has noticed its end already
            if os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None:
                time.sleep(_LOOK_S)
                continue
        return True
    return False


def end_unused_server() -> None:
    """End the server that processes are forked from, if there are none, and free its memory.

    It is killed: it may be importing for seconds. Whoever needs it later starts it again.
    """
    global _own_server
    if not vars(process)["_children"] and (server := _server_of_ours()) is not None:
        end_hanging_server()
        server._stop()
        _own_server = None


def start_patience(timeout_s: float) -> float:
    """Seconds that a start may take, where an answer may take `timeout_s`."""
    return max(START_S, timeout_s)


@contextmanager
def start_deadline(timeout_s: float) -> Iterator[None]:
    """End the server that processes are forked from, if starting some takes long: it hangs.

    Whoever asks it for a process, which multiprocessing does without a deadline, meets an EOFError
    or a ConnectionError then.
    """
    timer = threading.Timer(start_patience(timeout_s), end_hanging_server)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def end_hanging_server() -> None:
    """Kill a server of ours that hangs; whoever waits for its answer meets the end."""
    server = _server_of_ours()
    if server is not None:
        with suppress(ProcessLookupError):
            os.kill(server._forkserver_pid, signal.SIGKILL)


def _server_of_ours() -> Any | None:
    """The server, if `ensure_server` started it in this very process, and not somebody else.

    One that has died is started again by multiprocessing itself.
    """
    server: Any = forkserver._forkserver
    ours = _own_server == os.getpid() and server._forkserver_pid is not None
    return server if ours else None


def why_no_processes() -> str | None:
    """Say why processes that import the main module would fail; None if they can start."""
    if not _main_is_guarded():
        return (
            'the program has no `if __name__ == "__main__":` around what it does, and each '
            "worker process would do it again"
        )
    return None


def _main_is_guarded() -> bool:
    """Whether worker processes, which import the main module, do not run it again by that."""
    path = getattr(sys.modules["__main__"], "__file__", None)
    if path is None:  # an interactive session, which is not imported
        return True
    try:
        tree = ast.parse(Path(path).read_bytes())
    except (OSError, SyntaxError, ValueError):
        return False
    return any(
        isinstance(node, ast.If) and "'__main__'" in ast.dump(node.test) for node in tree.body
    )


def send_descriptor(channel: Any, fd: int) -> None:
    """Send a descriptor over a connection, behind a message."""
    with _socket_of(channel) as its_socket:
        socket.send_fds(its_socket, [b"f"], [fd])


def receive_descriptor(channel: Any) -> int:
    """Receive what `send_descriptor` sent.

    Raises:
        EOFError: The other side is gone.
    """
    with _socket_of(channel) as its_socket:
        _, fds, _, _ = socket.recv_fds(its_socket, 1, 1)
    if not fds:
        raise EOFError
    return fds[0]


def _limit_waiting(channel: Any, timeout_s: float) -> None:
    """Let reads and writes on a connection fail where a stopped process would block them."""
    seconds, rest = divmod(timeout_s, 1)
    limit = struct.pack("ll", int(seconds), int(rest * 1e6))
    with _socket_of(channel) as its_socket:
        its_socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, limit)
        its_socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, limit)


def _socket_of(channel: Any) -> socket.socket:
    """A socket of a duplicated descriptor; the connection behind both is the same."""
    its_socket = socket.socket(fileno=os.dup(channel.fileno()))
    # A program's socket.setdefaulttimeout must not make the connection non-blocking.
    its_socket.setblocking(True)
    return its_socket


_MOST_WORKERS = 32
"""More workers than this are a choice: each holds batches in memory."""


def usable_cores() -> int:
    """Count the cores that this process may run on: its affinity, within its container's quota."""
    import loky

    cores: int = loky.cpu_count()
    return cores


def default_workers() -> int:
    """Count workers for ``loader.num_workers=auto``: this rank's share of the cores, at most 32."""
    return max(1, min(usable_cores() // local_ranks(), _MOST_WORKERS))


def local_ranks() -> int:
    """Count the ranks of this job on this machine."""
    return max(1, int(os.environ.get("LOCAL_WORLD_SIZE", "1")))
