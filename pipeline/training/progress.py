"""How training goes, as the user sees it: a bar on a terminal, lines elsewhere."""

from __future__ import annotations

import sys
import time
from typing import Any, Literal, Protocol

from pipeline.training.output import print_line
from pipeline.training.state import RunState

_LINE_EVERY_S = 10.0
_FIGURES_EVERY_S = 0.5
_WIDE = 80  # columns that the whole bar fits in


class Progress(Protocol):
    """Is told of every step."""

    def step(self, state: RunState, num_batches: int | None, figures: dict[str, float]) -> None:
        """A step is done.

        Args:
            state: Where the run stands.
            num_batches: Batches of the epoch, None if unknown.
            figures: ``samples_per_s``, ``data_wait`` (a share), and ``loss`` once there is one.
        """

    def say(self, text: str) -> None:
        """Print a line."""

    def close(self) -> None:
        """Leave the screen as it was."""


def make_progress(
    kind: Literal["auto", "bar", "lines", "off"], max_epochs: int | None, *, is_main: bool
) -> Progress:
    """The kind of progress that fits where standard output goes."""
    if not is_main or kind == "off":
        return Silent(is_main)
    if kind == "bar" or (kind == "auto" and sys.stdout.isatty()):
        return Bar(max_epochs)
    return Lines(max_epochs)


class Silent:
    """Shows no steps; rank 0 still prints lines that it is asked to."""

    def __init__(self, prints: bool) -> None:
        self._prints = prints

    def step(self, state: RunState, num_batches: int | None, figures: dict[str, float]) -> None:
        """Nothing."""

    def say(self, text: str) -> None:
        """Print a line, on rank 0."""
        if self._prints:
            print_line(text)

    def close(self) -> None:
        """Nothing."""


class Lines:
    """A plain line every ten seconds: for pipes, log files and notebooks."""

    def __init__(self, max_epochs: int | None) -> None:
        self._max_epochs = max_epochs
        self._next_s = time.monotonic() + _LINE_EVERY_S

    def step(self, state: RunState, num_batches: int | None, figures: dict[str, float]) -> None:
        """Print a line, if the last one is ten seconds old."""
        if time.monotonic() < self._next_s:
            return
        self._next_s = time.monotonic() + _LINE_EVERY_S
        batch = f"batch {state.batch}" + (f"/{num_batches}" if num_batches else "")
        print_line(f"{_epoch(state, self._max_epochs)}  {batch}  {_speed(figures)}")

    def say(self, text: str) -> None:
        """Print a line."""
        print_line(text)

    def close(self) -> None:
        """Nothing."""


class Bar:
    """A progress bar of the epoch, with speed, loss and waiting beside it.

    On a narrow terminal: epoch, batch and loss.
    """

    def __init__(self, max_epochs: int | None) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
        from rich.progress import Progress as RichProgress

        self._max_epochs = max_epochs
        console = Console(highlight=False)
        self._narrow = console.width < _WIDE
        between = (BarColumn(bar_width=12), MofNCompleteColumn(), TimeRemainingColumn(compact=True))
        self._bar: Any = RichProgress(
            TextColumn("{task.description}"),
            *(between[1:2] if self._narrow else between),
            TextColumn("{task.fields[figures]}"),
            console=console,
            transient=True,
        )
        self._task = self._bar.add_task("", total=None, figures="")
        self._next_s = 0.0
        self._bar.start()

    def step(self, state: RunState, num_batches: int | None, figures: dict[str, float]) -> None:
        """Move the bar."""
        changes: dict[str, Any] = {"completed": state.batch, "total": num_batches}
        if time.monotonic() >= self._next_s:
            self._next_s = time.monotonic() + _FIGURES_EVERY_S
            changes["figures"] = (
                _loss(figures) if self._narrow else _speed(figures, waiting="data wait")
            )
            changes["description"] = _epoch(state, self._max_epochs)
        self._bar.update(self._task, **changes)

    def say(self, text: str) -> None:
        """Print a line above the bar."""
        self._bar.console.print(text, markup=False, highlight=False, soft_wrap=True)

    def close(self) -> None:
        """Take the bar away."""
        self._bar.stop()


def _epoch(state: RunState, max_epochs: int | None) -> str:
    return f"epoch {state.epoch + 1}" + (f"/{max_epochs}" if max_epochs else "")


def _loss(figures: dict[str, float]) -> str:
    return f"loss {figures['loss']:.4g}  " if "loss" in figures else ""


def _speed(figures: dict[str, float], waiting: str = "waiting for data") -> str:
    speed = f"{figures['samples_per_s']:,.0f} samples/s"
    return f"{_loss(figures)}{speed}  {waiting} {figures['data_wait']:.0%}"
