"""Where the program's lines go: standard output and the run's log file."""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_PACKAGES = ("pipeline", "datasets", "transforms")


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
    loggers = [logging.getLogger(name) for name in _PACKAGES]
    before = [(logger, logger.level, logger.propagate) for logger in loggers]
    for logger in loggers:
        logger.addHandler(handler)
        logger.setLevel(logging.INFO)
        logger.propagate = False
    try:
        yield
    finally:
        for logger, level, propagate in before:
            logger.removeHandler(handler)
            logger.setLevel(level)
            logger.propagate = propagate


class StandardOutput(logging.Handler):
    """Writes lines to what standard output is at that moment, and survives its end."""

    def emit(self, record: logging.LogRecord) -> None:
        """Write one line."""
        print_line(self.format(record))


def print_line(text: str) -> None:
    """Print a line; when nobody reads any more (``| head``), training goes on without."""
    try:
        print(text, flush=True)
    except BrokenPipeError:
        # The interpreter flushes standard output once more at its end, and would complain.
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, sys.__stdout__.fileno() if sys.__stdout__ else 1)
        os.close(nowhere)
