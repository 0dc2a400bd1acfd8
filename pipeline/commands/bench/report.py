"""Print what a bench has found, and what it is doing."""

from __future__ import annotations

import shutil
import sys
import textwrap
from statistics import median
from typing import TYPE_CHECKING

from penstock.pipeline.commands.table import table_lines
from penstock.pipeline.loader.stats import LoaderTimes

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from penstock.pipeline.commands.bench.subject import Round


WIDTH = 80
FAILURES = (ValueError, OSError, RuntimeError)
"""Of opening and measuring a configuration."""
_INDENT = 15


def width() -> int:
    """Columns to write in: those of the terminal, at most 80."""
    return max(30, min(WIDTH, shutil.get_terminal_size((WIDTH, 24)).columns))


def write(line: str) -> None:
    """Print a line as it is, at once."""
    print(line, flush=True)


def say(name: str, text: str) -> None:
    """Print a line with a name before it, wrapped at 80 columns."""
    clear()
    lines = textwrap.wrap(
        text, max(width() - _INDENT, 20), break_long_words=False, break_on_hyphens=False
    )
    for number, line in enumerate(lines or [""]):
        write(f"{name if number == 0 else '':<{_INDENT}}{line}")


def heading(text: str) -> None:
    """Print a heading, after an empty line."""
    clear()
    write(f"\n{textwrap.fill(text, width())}")


def write_table(heads: Sequence[str], rows: Iterable[Sequence[str]], *, names: int = 1) -> None:
    """Print a table after an empty line; what is not among the first `names` are numbers."""
    clear()
    write("")
    for line in table_lines(heads, rows, numbers=heads[names:], width=width()):
        write(line)


def last_line(error: Exception) -> str:
    """Take the last line of an error's message; its kind if it says nothing."""
    return (str(error).strip().splitlines() or [type(error).__name__])[-1].strip()


def doing(text: str) -> None:
    """Show what is being done, on a terminal alone; the next line takes its place."""
    if sys.stderr.isatty():
        sys.stderr.write(f"\r\x1b[K{text[: width() - 1]}")
        sys.stderr.flush()


def clear() -> None:
    """Take away what `doing` shows."""
    if sys.stderr.isatty():
        sys.stderr.write("\r\x1b[K")
        sys.stderr.flush()


def rate_of(rounds: Sequence[Round]) -> float:
    """The median of the rates."""
    return median(each.rate for each in rounds)


def spread_of(rounds: Sequence[Round]) -> float:
    """Half of the range of the rates, as a share of their median."""
    rates = [each.rate for each in rounds]
    return (max(rates) - min(rates)) / 2 / max(median(rates), 1e-9)


def times_of(rounds: Sequence[Round]) -> LoaderTimes:
    """Sum the times of all rounds."""
    total = LoaderTimes()
    for each in rounds:
        total.add(each.times)
    return total


def megabytes(size_bytes: int | None) -> str:
    """A size for people; unknown where it is."""
    return "unknown" if size_bytes is None else f"{size_bytes / 1e6:,.0f} MB"
