"""Commands whose output is read: started so that none outlives us, ended with all they started."""

from __future__ import annotations

import contextlib
import fcntl
import os
import shlex
import signal
import subprocess
import sys
import threading

PIPE = "pipe:"
PIPE_BYTES = 1 << 20
"""What a pipe holds, where the system allows it."""

_SET_PIPE_SIZE = 1031  # F_SETPIPE_SZ of Linux
_END_S = 2.0

# Executed in place of itself by the command, which so dies with the thread that started it: also
# where that was killed and could end nothing. prctl(1, 9): PR_SET_PDEATHSIG, SIGKILL.
_LEASH = (
    "import ctypes, os, sys\n"
    "ctypes.CDLL(None).prctl(1, 9)\n"
    "if os.getppid() != int(sys.argv[1]): sys.exit(1)\n"
    "try: os.execvp(sys.argv[2], sys.argv[2:])\n"
    "except OSError as error: sys.exit(f'{sys.argv[2]}: {error.strerror}')\n"
)

# A worker that is forked while a command is being started would keep the command's ends of its
# pipes open, and so its output would never end: forks wait until it is started.
_starting = threading.Lock()
os.register_at_fork(
    before=_starting.acquire,
    after_in_parent=_starting.release,
    after_in_child=_starting.release,
)


def command_of(name: str) -> list[str]:
    """The words of ``pipe:command``.

    Raises:
        ValueError: There are none, or a quote is open.
    """
    try:
        words = shlex.split(name.removeprefix(PIPE))
    except ValueError as error:
        raise ValueError(f"{name!r}: {error}") from None
    if not words:
        raise ValueError(f"{name!r} has no command; expected pipe:command arguments")
    return words


def start_command(name: str) -> subprocess.Popen[bytes]:
    """Run a command, in a session of its own: Ctrl-C is for us, and we end it."""
    leash = [sys.executable, "-I", "-S", "-c", _LEASH, str(os.getpid())]
    with _starting:
        process = subprocess.Popen(
            [*leash, *command_of(name)],
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, bufsize=0, start_new_session=True,
        )  # fmt: skip
    assert process.stdout is not None
    with contextlib.suppress(OSError):
        fcntl.fcntl(process.stdout.fileno(), _SET_PIPE_SIZE, PIPE_BYTES)
    return process


def end_command(process: subprocess.Popen[bytes]) -> None:
    """End a command that still runs, and all that it started."""
    if process.poll() is not None:
        return
    for number in (signal.SIGTERM, signal.SIGKILL):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, number)
        try:
            process.wait(_END_S)
            break
        except subprocess.TimeoutExpired:
            continue
