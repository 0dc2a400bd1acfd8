"""How worker processes start: with heavy modules there already, and deaf to signals."""

from __future__ import annotations

import ast
import logging
import multiprocessing
import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from multiprocessing import forkserver, process, resource_tracker
from pathlib import Path
from typing import Any

from pipeline.cores import usable_cores

_logger = logging.getLogger(__name__)

_PRELOADED = (
    "pipeline.loader.ring.child",
    "pipeline.config.discovery",
    "numpy",
    "torch",
    "torch.utils.data",
    "cv2",
    "simplejpeg",
)
_PRELOADED_IF_USED = ("albumentations", "lmdb", "pyarrow", "PIL.Image")

_GIVE_UP_S = 2.0
_LOOK_S = 0.05
_END_S = 5.0

_said: set[str] = set()
server_users: set[int] = set()
"""Ids of what may start a process from the fork server at any moment."""
_server_lock = threading.Lock()  # held to add a user, and to end the server if there is none
_own_server: tuple[int, int] | None = None  # this process, and the server that it started here


def process_context(name: str) -> Any:
    """The multiprocessing context of a start method, its server told what to preload.

    What it starts while SIGINT is blocked, as by `interrupts_held`, starts with it blocked: no
    Ctrl-C reaches a process before it can ignore it.
    """
    context = multiprocessing.get_context(name)
    if name != "fork":
        _start_resource_tracker()
    if name == "forkserver":
        os.environ.setdefault("NO_ALBUMENTATIONS_UPDATE", "1")
        used = [module for module in _PRELOADED_IF_USED if module in sys.modules]
        # Takes effect when the server starts; modules that are not installed are passed over.
        context.set_forkserver_preload([*_PRELOADED, *used])
    return context


def preload(name: str) -> None:
    """Let the server that processes are forked from import what they need, in the background."""
    if name == "forkserver":
        process_context(name)
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
    with sigterm_blocked():
        forkserver.ensure_running()
    pid: int = server._forkserver_pid
    if pid != before:
        _own_server = os.getpid(), pid
    return pid


def use_server(user: int) -> None:
    """Have the server left alone until `user` is discarded from `server_users`."""
    with _server_lock:
        server_users.add(user)


@contextmanager
def server_used(user: int) -> Iterator[None]:
    """Start processes from a server that nobody ends meanwhile."""
    use_server(user)
    try:
        yield
    finally:
        server_users.discard(user)


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
def sigterm_blocked() -> Iterator[None]:
    """Start processes with SIGTERM blocked, until they can take care of it themselves."""
    held = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, held)


def end_unused_server(user: int | None = None) -> None:
    """End the server that processes are forked from, if there are none, and free its memory.

    It is killed: it may be importing for seconds. Whoever needs it later starts it again. One
    that was not started by `ensure_server`, or by the process that this one was forked from, is
    not ours to end: others may be about to start something from it.

    Args:
        user: Who need not be asked, of `server_users`.
    """
    server: Any = forkserver._forkserver
    if _own_server is None or _own_server != (os.getpid(), server._forkserver_pid):
        return
    with _server_lock:
        children = vars(process)["_children"]
        if server._forkserver_pid is not None and not (children or server_users - {user}):
            with suppress(ProcessLookupError):
                os.kill(server._forkserver_pid, signal.SIGKILL)
            server._stop()


def give_up_starting(started: threading.Event, user: int) -> bool:
    """Wait for a start that nobody needs any more, and hurry it by ending the server it waits for.

    Args:
        started: Set when it has succeeded or failed.
        user: Who starts, of `server_users`.

    Returns:
        Whether it is over; the server may be another's too, and import for longer.
    """
    deadline = time.monotonic() + _GIVE_UP_S
    while not started.is_set() and time.monotonic() < deadline:
        end_unused_server(user)
        started.wait(_LOOK_S)
    return started.is_set()


def why_no_processes(start_method: str) -> str | None:
    """Why processes had better not be started while threads compute; None if they may."""
    if start_method == "fork":
        return "multiprocessing_context=fork copies a process safely only before it has threads"
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


def warn_about_cores(num_workers: int) -> None:
    """Say once that there are more workers than cores."""
    cores = usable_cores()
    if num_workers > cores and "cores" not in _said:
        _said.add("cores")
        _logger.warning(
            "loader.num_workers=%d on %d CPU cores: it works, but more workers than cores "
            "take memory and gain nothing unless they wait for a network",
            num_workers, cores,
        )  # fmt: skip
