"""Print and log lines, refuse files that may not be written, end cleanly at a signal."""

from __future__ import annotations

import logging
import os
import shutil
import signal
import sys
import textwrap
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import FrameType

from penstock.core.files import whole_file

_LOGGER = "penstock"


@contextmanager
def spoken_lines(rank: int) -> Iterator[None]:
    """Print what our packages log: on rank 0 everything, on the others warnings by rank."""
    handler: logging.Handler = StandardOutput()
    if rank:
        handler = logging.StreamHandler(sys.stderr)
        handler.setLevel(logging.WARNING)
        handler.setFormatter(logging.Formatter(f"rank {rank}: %(message)s"))
    with _handling(handler):
        yield


@contextmanager
def logged_to(path: Path | None) -> Iterator[None]:
    """Append what our packages log to a file, with the time; None: to none."""
    if path is None:
        yield
        return
    handler = logging.FileHandler(path, encoding="utf-8")
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
    try:
        with _handling(handler):
            yield
    finally:
        handler.close()


@contextmanager
def _handling(handler: logging.Handler) -> Iterator[None]:
    logger = logging.getLogger(_LOGGER)
    level, propagate = logger.level, logger.propagate
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    logger.propagate = False
    try:
        yield
    finally:
        logger.removeHandler(handler)
        logger.setLevel(level)
        logger.propagate = propagate


class StandardOutput(logging.Handler):
    """Writes lines to what standard output is at that moment."""

    def emit(self, record: logging.LogRecord) -> None:
        """Write one line."""
        print_line(self.format(record))


def print_line(text: str) -> None:
    """Print a line, on a terminal broken between words.

    When the reader has ended (``| head``), the program ends as other tools of Unix do, training
    after its step and with a checkpoint.

    Raises:
        SystemExit: Nobody reads any more, and nothing is trained at the moment.
    """
    if sys.stdout.isatty():
        width = shutil.get_terminal_size().columns
        broken = textwrap.TextWrapper(width, subsequent_indent=" " * 6, break_on_hyphens=False)
        broken.break_long_words = broken.drop_whitespace = False
        text = "\n".join(row.rstrip() for row in broken.wrap(text)) if len(text) > width else text
    try:
        print(text, flush=True)
    except BrokenPipeError:
        # The interpreter flushes standard output once more at its end, and would complain.
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, sys.__stdout__.fileno() if sys.__stdout__ else 1)
        os.close(nowhere)
        if not _entered:
            raise SystemExit(128 + signal.SIGPIPE) from None
        for interrupt in _entered:
            interrupt.request(128 + signal.SIGPIPE)


def check_output(
    key: str,
    paths: Sequence[Path],
    endings: Sequence[str],
    *,
    overwrite: bool,
    is_ours: Callable[[Path], bool] = lambda path: False,
) -> None:
    """Refuse files that cannot or may not be written, before anything is computed.

    Args:
        key: Where the first of them was given, such as ``predict.output``.
        paths: The files.
        endings: Endings that the first may have.
        overwrite: Existing files may be overwritten.
        is_ours: Tells existing files that may always be overwritten.

    Raises:
        ValueError: One is of another kind, or is there and may not be written over.
    """
    command = key.partition(".")[0]
    if paths[0].suffix.lower() not in endings:
        wanted = f"expected a file name that ends in {' or '.join(endings)}"
        remedy = f"type {key}={paths[0].with_suffix(next(iter(endings)))}"
        raise ValueError(f"{key} is {str(paths[0])!r}, {wanted}; {remedy}")
    for path in paths:
        if path.is_dir():
            raise ValueError(f"{key}: {path} is a folder; name a file")
        if os.path.lexists(path) and not overwrite and not is_ours(path):
            raise ValueError(
                f"{key}: {path} exists; choose another path, or set {command}.overwrite=true"
            )
    folder = paths[0].parent
    while not folder.exists():
        folder = folder.parent
    if not folder.is_dir() or not os.access(folder, os.W_OK):
        raise ValueError(f"{key}: cannot write to the folder {folder}; choose another path")


def write_output(key: str, contents: Mapping[Path, bytes]) -> None:
    """Write files, each of them whole; none where one cannot be written.

    Args:
        key: Where the first of them was given.
        contents: By path; folders that are not there are made.

    Raises:
        ValueError: One cannot be written.
    """
    try:
        with ExitStack() as files:
            for path, content in contents.items():
                path.parent.mkdir(parents=True, exist_ok=True)
                files.enter_context(whole_file(path)).write_bytes(content)
    except OSError as error:
        raise ValueError(
            f"{key}: {path} cannot be written: {error.strerror}; choose another path"
        ) from error


_SIGNALS = (signal.SIGINT, signal.SIGTERM)
_TORCHRUN_REPEATS_S = 1.0


class Interrupt:
    """While entered, SIGINT and SIGTERM ask for a clean end instead of ending the program.

    So does `print_line`, when the reader has ended.

    Attributes:
        requested: Whether a signal has requested the end.
        exit_code: Exit status of the program: 130 for SIGINT, 143 for SIGTERM, 141 where the
            reader has ended.
    """

    def __init__(self, *, speaks: bool = True) -> None:
        self.requested = False
        self.exit_code = 128 + signal.SIGINT
        self._speaks = speaks
        self._first_s = 0.0
        self._before: dict[int, object] = {}

    def __enter__(self) -> Interrupt:
        # Handlers can be set in the main thread alone; a job that a sweep runs in another
        # thread goes without.
        if threading.current_thread() is threading.main_thread():
            for number in _SIGNALS:
                self._before[number] = signal.signal(number, self._handle)
        _entered.append(self)
        return self

    def __exit__(self, *_: object) -> None:
        _entered.remove(self)
        for number, handler in self._before.items():
            signal.signal(number, handler)  # type: ignore[arg-type]
        self._before.clear()

    def request(self, exit_code: int) -> None:
        """Ask for a clean end."""
        self.requested, self.exit_code = True, exit_code

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if not self.requested:
            self.request(128 + number)
            self._first_s = time.monotonic()
            self._say("stopping after this step; once more to stop at once")
            return
        # torchrun passes on the signal that the terminal has already given to every process.
        repeated = time.monotonic() - self._first_s < _TORCHRUN_REPEATS_S
        if "TORCHELASTIC_RUN_ID" in os.environ and repeated:
            return
        self._say("stopped at once; what came after the last checkpoint is lost")
        os._exit(128 + number)

    def _say(self, text: str) -> None:
        if not self._speaks:
            return
        # os.write: this runs between any two instructions, also within a print. The first
        # bytes show the cursor again, which a progress bar hides.
        start = "\x1b[?25h\n" if sys.stderr.isatty() else ""
        try:
            os.write(2, f"{start}{text}\n".encode())
        except OSError:
            pass


_entered: list[Interrupt] = []
"""Interrupts of the trainings of this process; jobs in threads may have several."""
