"""Read a byte stream: a file, a command, a socket or the standard input.

Every wait has a deadline. A command that fails raises an error instead of ending the stream.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import gzip
import io
import logging
import os
import select
import shlex
import signal
import socket
import subprocess
import sys
import threading
import time
import zlib
from collections.abc import Callable
from functools import partial
from typing import Any
from urllib.parse import urlsplit

from penstock.core.sample import RecordError
from penstock.core.user_errors import ExplainedError
from penstock.datasets.files.access import check_unchanged, is_pattern, is_url
from penstock.datasets.files.reading_thread import still_wanted
from penstock.datasets.files.remote import RemoteStream

_log = logging.getLogger(__name__)

STDIN = "-"
_SOCKETS = ("tcp://", "unix:")
_BUFFER_BYTES = 1 << 18
_TICK_S = 0.2
_CONNECT_S = 10.0
_NOT_YET = (errno.ECONNREFUSED, errno.ENOENT)
"""Errors of an address without a listener, which may be about to start."""
_GZIP = b"\x1f\x8b"
_ZSTD = b"\x28\xb5\x2f\xfd"
PIPE = "pipe:"
PIPE_BYTES = 1 << 20
"""Size of a pipe, where the system allows it."""
_SET_PIPE_SIZE = 1031  # F_SETPIPE_SZ of Linux
_END_S = 2.0

# Runs before the command and replaces itself with it. The kernel then kills the command when the
# thread that started it dies, even by SIGKILL. prctl(1, 9): PR_SET_PDEATHSIG, SIGKILL.
_LEASH = (
    "import ctypes, os, sys\n"
    "ctypes.CDLL(None).prctl(1, 9)\n"
    "if os.getppid() != int(sys.argv[1]): sys.exit(1)\n"
    "try: os.execvp(sys.argv[2], sys.argv[2:])\n"
    "except OSError as error: sys.exit(f'{sys.argv[2]}: {error.strerror}')\n"
)

# A worker forked during the start of a command would inherit the command's pipe ends, and the
# output would never end. Forks wait until the command has started.
_starting = threading.Lock()
os.register_at_fork(
    before=_starting.acquire, after_in_parent=_starting.release, after_in_child=_starting.release
)


class StreamError(ExplainedError):
    """A stream broke, stalled or cannot be opened; the data is not damaged."""


def is_file(name: str) -> bool:
    """Return whether a name is a file, not a command, a socket or the standard input."""
    return name != STDIN and not name.startswith((PIPE, *_SOCKETS))


def is_socket(name: str) -> bool:
    """Return whether a name is a socket."""
    return name.startswith(_SOCKETS)


def is_read_once(name: str) -> bool:
    """Return whether a stream can be opened only once."""
    return name == STDIN or is_socket(name)


def missing_path(path: str) -> bool:
    """Return whether a plain path does not exist."""
    plain = is_file(path) and not is_url(path) and not is_pattern(path)
    return plain and not os.path.exists(os.path.expanduser(path))


class ByteStream:
    """A byte stream that counts its position.

    Args:
        name: A path, ``pipe:command``, ``tcp://host:port``, ``unix:/path``, or ``-``. A command
            is split like in a shell, but runs without one. Files may be compressed with gzip or
            zstd.
        timeout_s: Longest wait for a byte, in seconds.
        mark: Size, and mtime in ns or etag, of a file. Changed content raises ChangedFile.

    Attributes:
        offset: Bytes read or skipped.
        size: Size of a plain local file; None if unknown or compressed.
        may_break_off: Whether the stream is not a file, so a lost connection may end it.
    """

    def __init__(
        self, name: str, *, timeout_s: float, mark: tuple[int, int | str] | None = None
    ) -> None:
        self.name = name
        self.offset = 0
        self.size: int | None = None
        self.may_break_off = not is_file(name)
        self._raw: _WaitedBytes | None = None
        self._check: Callable[[], None] | None = None
        self._file: Any
        if self.may_break_off:
            self._raw = _WaitedBytes(name, _connect(name, timeout_s), timeout_s)
            self._file = io.BufferedReader(self._raw, _BUFFER_BYTES)
        else:
            self._file = self._open_file(mark)

    def _open_file(self, mark: tuple[int, int | str] | None) -> Any:
        by_place = not is_url(self.name)
        try:
            etag = None if mark is None else str(mark[1])
            raw: Any = io.FileIO(self.name) if by_place else RemoteStream(self.name, mark=etag)
            file = io.BufferedReader(raw, _BUFFER_BYTES)
        except OSError as error:
            raise StreamError(f"{self.name}: cannot be opened: {error.strerror}") from error
        if by_place and mark is not None:
            self._check = partial(check_unchanged, raw.fileno(), mark, self.name)
            self._check()
        start = file.peek(4)[:4]
        if start[:2] == _GZIP:
            return io.BufferedReader(gzip.GzipFile(fileobj=file), _BUFFER_BYTES)
        if start == _ZSTD:
            import pyarrow

            unpacked = pyarrow.CompressedInputStream(pyarrow.PythonFile(file, "r"), "zstd")
            return io.BufferedReader(unpacked, _BUFFER_BYTES)
        self.size = os.fstat(file.fileno()).st_size if by_place else None
        return file

    def read(self, size_bytes: int) -> bytes:
        """Read the next bytes, fewer only at the end; RecordError for damaged compressed data."""
        return self._taken(self._file.read, size_bytes)

    def readline(self, most_bytes: int) -> bytes:
        """Read the next line with its end, up to `most_bytes`; empty at the end."""
        return self._taken(self._file.readline, most_bytes)

    def _taken(self, take: Callable[[int], bytes], size_bytes: int) -> bytes:
        try:
            found = take(size_bytes)
        except (EOFError, gzip.BadGzipFile, zlib.error) as error:
            raise RecordError(f"its compression is damaged or cut off: {error}") from error
        except OSError as error:
            if error.errno is None:  # pyarrow reports damaged data
                raise RecordError(f"its compression is damaged or cut off: {error}") from error
            raise StreamError(f"{self.name}: cannot be read: {error.strerror}") from error
        self.offset += len(found)
        if not found and size_bytes and self._check is not None:
            self._check()
        return found

    def skip(self, size_bytes: int) -> int:
        """Skip bytes and return their number. Raises as `read`."""
        if self.size is not None:
            found = min(size_bytes, self.size - self.offset)
            self._file.seek(self.offset + found)
            self.offset += found
            return found
        left = size_bytes
        while left:
            found = len(self.read(min(left, PIPE_BYTES)))
            if not found:
                break
            left -= found
        return size_bytes - left

    def close(self) -> None:
        """Close the stream and end a running command."""
        if self._raw is not None:
            self._raw.end()
        self._file.close()


class _WaitedBytes(io.RawIOBase):
    """Reads a descriptor, with a deadline for every wait."""

    def __init__(self, name: str, opened: tuple[int, Any], timeout_s: float) -> None:
        self._name = name
        self._fd, self._owner = opened
        self._timeout_s = timeout_s
        self._poll = select.poll()
        self._poll.register(self._fd, select.POLLIN)

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        deadline = time.monotonic() + self._timeout_s
        while not self._poll.poll(_TICK_S * 1000):
            still_wanted()
            if time.monotonic() > deadline:
                raise StreamError(
                    f"{self._name}: gave no byte within timeout_s={self._timeout_s:g} s; see what "
                    f"it waits for, or raise dataset.source.timeout_s"
                )
        try:
            found = os.readv(self._fd, [buffer])
        except OSError as error:
            raise StreamError(f"{self._name}: broke off: {error.strerror}") from error
        if not found and isinstance(self._owner, subprocess.Popen):
            self._check_exit(self._owner)
        elif not found and isinstance(self._owner, socket.socket):
            _log.info("%s: ends: the sender closed the connection", self._name)
        return found

    def _check_exit(self, process: subprocess.Popen[bytes]) -> None:
        """Check that a command exits with 0 after it closes its output."""
        try:
            code = process.wait(self._timeout_s)
        except subprocess.TimeoutExpired:
            raise StreamError(
                f"{self._name}: closed its output and did not end within timeout_s="
                f"{self._timeout_s:g} s"
            ) from None
        if code:
            how = f"exit code {code}" if code > 0 else f"signal {-code}"
            raise StreamError(f"{self._name}: the command failed with {how}; run it by itself")

    def end(self) -> None:
        """Close the descriptor and end its command or socket."""
        owner, self._owner = self._owner, None
        if isinstance(owner, subprocess.Popen):
            assert owner.stdout is not None
            owner.stdout.close()
            end_command(owner)
        elif owner is not None:
            owner.close()


def _connect(name: str, timeout_s: float) -> tuple[int, Any]:
    """Open a command, a socket or the standard input; return its descriptor and owner."""
    if name == STDIN:
        return sys.__stdin__.fileno() if sys.__stdin__ else 0, None
    if name.startswith(PIPE):
        process = start_command(name)
        assert process.stdout is not None
        return process.stdout.fileno(), process
    deadline = time.monotonic() + min(timeout_s, _CONNECT_S)
    while True:
        try:
            connection = _connected(name, timeout_s)
            connection.settimeout(None)
            return connection.fileno(), connection
        except OSError as error:
            if error.errno not in _NOT_YET or time.monotonic() > deadline:
                said = error.strerror or "no answer"
                raise StreamError(
                    f"{name}: cannot be connected to: {said}; start what sends, or correct "
                    f"dataset.source.path"
                ) from error
        still_wanted()
        time.sleep(_TICK_S)


def _connected(name: str, timeout_s: float) -> socket.socket:
    if name.startswith("unix:"):
        connection = socket.socket(socket.AF_UNIX)
        connection.settimeout(timeout_s)
        try:
            connection.connect(name.removeprefix("unix:"))
        except BaseException:
            connection.close()
            raise
        return connection
    host, port = socket_address(name)
    return socket.create_connection((host, port), timeout=timeout_s)


def socket_address(name: str) -> tuple[str, int]:
    """Split ``tcp://host:port`` into host and port."""
    try:
        parts = urlsplit(name)
        port = parts.port
    except ValueError:
        parts, port = urlsplit(""), None
    if not parts.hostname or port is None or parts.path not in ("", "/"):
        raise ValueError(f"{name!r} is not an address; expected tcp://host:port")
    return parts.hostname, port


def command_of(name: str) -> list[str]:
    """Split ``pipe:command`` into words."""
    try:
        words = shlex.split(name.removeprefix(PIPE))
    except ValueError as error:
        raise ValueError(f"{name!r}: {error}") from None
    if not words:
        raise ValueError(f"{name!r} lacks a command; expected pipe:command arguments")
    return words


def start_command(name: str) -> subprocess.Popen[bytes]:
    """Run a command in its own session, so that Ctrl-C reaches only this process."""
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
    """End a running command and its children."""
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
