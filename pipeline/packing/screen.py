"""How packing goes, as the user sees it: a bar on a terminal, a line now and then elsewhere."""

from __future__ import annotations

import sys
import time
from typing import Any, Protocol

_LINE_EVERY_S = 10.0


class Screen(Protocol):
    """Is told how much is done."""

    def add(self, records: int, size_bytes: int) -> None:
        """So many more are done."""

    def close(self) -> None:
        """Leave the screen as it was."""


def show(what: str, total: int, done: int = 0) -> Screen:
    """What fits where standard output goes.

    Args:
        what: What is done, such as ``train``.
        total: Records in all.
        done: Records that were done before.
    """
    return (_Bar if sys.stdout.isatty() else _Lines)(what, total, done)


class _Lines:
    def __init__(self, what: str, total: int, done: int) -> None:
        self._what, self._total, self._done, self._before = what, total, done, done
        self._bytes = 0
        self._start_s = time.monotonic()
        self._next_s = self._start_s + _LINE_EVERY_S

    def add(self, records: int, size_bytes: int) -> None:
        self._done += records
        self._bytes += size_bytes
        now = time.monotonic()
        if now < self._next_s:
            return
        self._next_s = now + _LINE_EVERY_S
        seconds = now - self._start_s
        rate = (self._done - self._before) / seconds
        left = (self._total - self._done) / rate if rate else 0
        print(
            f"{self._what}: {self._done:,} of {self._total:,} records, "
            f"{self._bytes / 1e6 / seconds:,.1f} MB/s, {left:,.0f} s left",
            flush=True,
        )

    def close(self) -> None:
        pass


class _Bar:
    def __init__(self, what: str, total: int, done: int) -> None:
        from rich.console import Console
        from rich.progress import (
            BarColumn,
            MofNCompleteColumn,
            Progress,
            TextColumn,
            TimeRemainingColumn,
        )

        self._bar: Any = Progress(
            TextColumn("{task.description}"),
            BarColumn(bar_width=12),  # all of it fits in 80 columns
            MofNCompleteColumn(),
            TextColumn("{task.fields[speed]}"),
            TimeRemainingColumn(compact=True),
            console=Console(highlight=False),
            transient=True,
        )
        self._task = self._bar.add_task(what, total=total, completed=done, speed="")
        self._bytes, self._start_s = 0, time.monotonic()
        self._bar.start()

    def add(self, records: int, size_bytes: int) -> None:
        self._bytes += size_bytes
        seconds = max(time.monotonic() - self._start_s, 1e-3)
        self._bar.update(
            self._task, advance=records, speed=f"{self._bytes / 1e6 / seconds:,.1f} MB/s"
        )

    def close(self) -> None:
        self._bar.stop()
