"""Read a byte stream: a file, a command, a socket or the standard input."""

from __future__ import annotations

import io
import os
import select
import shlex
import signal
import socket
import subprocess
import time
from collections.abc import Callable
from concurrent.futures import Future, wait
from functools import partial
from typing import Any

from penstock.core.sample import RecordError
from penstock.core.user_errors import ExplainedError
from penstock.datasets.files.access import MissingFile, check_unchanged, is_pattern, is_url
from penstock.datasets.files.clients import RemoteError, begin, read_place, result_of
from penstock.datasets.files.reading_thread import still_wanted
from penstock.datasets.files.remote import PIECE_BYTES, split_url

STDIN = "-"
PIPE = "pipe:"
SOCKET = "tcp://"
_BUFFER_BYTES = 1 << 18
_SKIP_BYTES = 1 << 20
_TICK_S = 0.2
_COMPRESSIONS = {b"\x1f\x8b": "gzip", b"\x28\xb5\x2f\xfd": "zstd"}


class StreamError(ExplainedError):
    """A stream broke, stalled or cannot be opened; the data is not damaged."""


def is_file(name: str) -> bool:
    """Return whether a name is a file, not a command, a socket or the standard input."""
    return name != STDIN and not name.startswith((PIPE, SOCKET))


def is_read_once(name: str) -> bool:
    """Return whether a stream can be opened only once."""
    return name == STDIN or name.startswith(SOCKET)


def missing_path(path: str) -> bool:
    """Return whether a plain path does not exist."""
    plain = is_file(path) and not is_url(path) and not is_pattern(path)
    return plain and not os.path.exists(os.path.expanduser(path))


class ByteStream:
    """A byte stream at position `offset`, which gives up after `timeout_s` without a byte.

    `name` is a path, ``pipe:command`` (split like in a shell, but run without one),
    ``tcp://host:port`` or ``-``. Files may be compressed with gzip or zstd. `mark` is the size, and
    mtime in ns or etag, of a file: changed content raises ChangedFile. A lost connection may end a
    stream that `may_break_off`. `size` is known for plain local files.
    """

    def __init__(
        self, name: str, *, timeout_s: float, mark: tuple[int, int | str] | None = None
    ) -> None:
        self.name = name
        self.offset = 0
        self.size: int | None = None
        self.may_break_off = not is_file(name)
        self._check: Callable[[], None] | None = None
        try:
            raw = _WaitedBytes(name, timeout_s) if self.may_break_off else self._open_file(mark)
        except OSError as error:
            raise StreamError(
                f"{name}: cannot be opened: {error.strerror or error}; start what sends first, or "
                f"correct dataset.source.path"
            ) from error
        self._file: Any = io.BufferedReader(raw, _BUFFER_BYTES)

    def _open_file(self, mark: tuple[int, int | str] | None) -> Any:
        raw: Any
        if is_url(self.name):
            raw = _RemoteBytes(self.name, mark=None if mark is None else str(mark[1]))
        else:
            raw = io.FileIO(self.name)
            if mark is not None:
                self._check = partial(check_unchanged, raw.fileno(), mark, self.name)
                self._check()
        file = io.BufferedReader(raw, _BUFFER_BYTES)
        start = file.peek(4)
        for magic, compression in _COMPRESSIONS.items():
            if start.startswith(magic):
                import pyarrow

                return pyarrow.CompressedInputStream(pyarrow.PythonFile(file, "r"), compression)
        self.size = None if is_url(self.name) else os.fstat(raw.fileno()).st_size
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
        except OSError as error:
            if error.errno is None:  # from pyarrow
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
        while left and (piece := self.read(min(left, _SKIP_BYTES))):
            left -= len(piece)
        return size_bytes - left

    def close(self) -> None:
        """Close the stream and end a running command."""
        self._file.close()


class _RemoteBytes(io.RawIOBase):
    """A remote file as a stream, which prefetches the next piece; changed content raises."""

    def __init__(self, url: str, *, mark: str | None = None) -> None:
        self._url, self._mark, self._stop = url, mark, 0
        self._piece = memoryview(b"")
        self._ahead: Future[Any] | None = self._request()

    def _request(self) -> Future[Any]:
        start, self._stop = self._stop, self._stop + PIECE_BYTES
        return begin(partial(read_place, *split_url(self._url), start, self._stop, self._mark))

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        if not self._piece and self._ahead is not None:
            while not wait([self._ahead], _TICK_S).done:
                still_wanted()
            try:
                piece, found = result_of(self._ahead)
            except MissingFile as error:
                raise RemoteError(f"{error} any more") from error
            self._piece, self._ahead = memoryview(piece), None
            if found.size_bytes > self._stop:
                self._mark = found.mark
                self._ahead = self._request()
        taken = min(len(buffer), len(self._piece))
        buffer[:taken], self._piece = self._piece[:taken], self._piece[taken:]
        return taken


class _WaitedBytes(io.RawIOBase):
    """The bytes of a command, a socket or the standard input, with a deadline for every wait."""

    def __init__(self, name: str, timeout_s: float) -> None:
        self._name, self._timeout_s = name, timeout_s
        self._command: subprocess.Popen[bytes] | None = None
        self._pipe: Any
        if name == STDIN:
            self._pipe = open(0, "rb", buffering=0, closefd=False)
        elif name.startswith(PIPE):
            # In a session of its own, so that Ctrl-C reaches only this process.
            self._command = subprocess.Popen(
                command_of(name),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                bufsize=0,
                start_new_session=True,
            )
            self._pipe = self._command.stdout
        else:
            self._pipe = socket.create_connection(socket_address(name), timeout=timeout_s)
            self._pipe.settimeout(None)
        self._poll = select.poll()
        self._poll.register(self._pipe.fileno(), select.POLLIN)

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
        found = os.readv(self._pipe.fileno(), [buffer])
        if not found and self._command is not None:
            try:
                code = self._command.wait(self._timeout_s)
            except subprocess.TimeoutExpired as error:
                raise StreamError(f"{self._name}: closed its output and did not end") from error
            if code:
                how = f"exit code {code}" if code > 0 else f"signal {-code}"
                raise StreamError(f"{self._name}: the command failed with {how}; run it by itself")
        return found

    def close(self) -> None:
        """Close the descriptor, and end a running command and its children."""
        if not self.closed:
            self._pipe.close()
            if self._command is not None and self._command.poll() is None:
                os.killpg(self._command.pid, signal.SIGKILL)
                self._command.wait()
        super().close()


def socket_address(name: str) -> tuple[str, int]:
    """Split ``tcp://host:port`` into host and port."""
    host, _, port = name.removeprefix(SOCKET).rpartition(":")
    if not host or not port.isdigit():
        raise ValueError(f"{name!r} is not an address; expected tcp://host:port")
    return host.strip("[]"), int(port)


def command_of(name: str) -> list[str]:
    """Split ``pipe:command`` into words."""
    try:
        words = shlex.split(name.removeprefix(PIPE))
    except ValueError as error:
        raise ValueError(f"{name!r}: {error}") from None
    if not words:
        raise ValueError(f"{name!r} lacks a command; expected pipe:command arguments")
    return words
