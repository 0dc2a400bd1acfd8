"""Print what a bench has found, and what it is doing."""

from __future__ import annotations

import shutil
import sys
import textwrap
from statistics import median
from typing import TYPE_CHECKING, Literal

from penstock.core.contracts import StreamDataset
from penstock.core.cores import usable_cores
from penstock.pipeline.loader.stats import LoaderTimes, sources_text

if TYPE_CHECKING:
    from collections.abc import Sequence

    from penstock.pipeline.commands.bench.single import Figures
    from penstock.pipeline.commands.bench.subject import Round, Subject


WIDTH = 80
FAILURES = (ValueError, OSError, RuntimeError)
"""Of opening and measuring a configuration."""
_INDENT = 15
_LABELS = {
    "loader": "loader alone",
    "floor": "floor",
    "model": "model alone",
    "training": "both together",
}
_SHARED = 0.85


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


def write_table(lines: Sequence[Sequence[str]], *, names: int = 1) -> None:
    """Print lines of cells as a table, the heads first, after an empty line.

    Args:
        lines: The cells of each line.
        names: How many of the first cells name their line; the others are numbers.
    """
    from rich.console import Console
    from rich.table import Table

    clear()
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="")
    for place, head in enumerate(lines[0]):
        table.add_column(head, justify="left" if place < names else "right")
    for cells in lines[1:]:
        table.add_row(*cells)
    console = Console(width=width(), highlight=False, markup=False, emoji=False)
    console.print()
    console.print(table)


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
    return LoaderTimes(*map(sum, zip(*(each.times for each in rounds), strict=True)))


def megabytes(size_bytes: int | None) -> str:
    """A size for people; unknown where it is."""
    return "unknown" if size_bytes is None else f"{size_bytes / 1e6:,.0f} MB"


def print_loader(subject: Subject) -> None:
    """Say what is measured, when its first batch came, and what memory it takes."""
    settings, dataset = subject.loader.settings, subject.loader.dataset
    is_stream = isinstance(dataset, StreamDataset)
    size = "a stream" if is_stream else f"{len(dataset):,} samples"
    if subject.loader.stats.drawn:
        size += f" of {len(subject.loader.stats.drawn)} sources"
    workers = f"{subject.workers} worker{'s' if subject.workers != 1 else ''}"
    choice = f"engine {settings.engine}, {workers}"
    say("data", f"{size}, batches of {subject.loader.batch_size}, {choice}")
    say("first batch", f"after {subject.first_batch_s:.2f} s, workers started included; the loader "
        f"takes {megabytes(subject.memory_bytes)} of memory")  # fmt: skip


def print_figures(subject: Subject, figures: Figures) -> None:
    """Print the rates that were measured, and where the time of a sample goes."""
    if not any(figures.rounds.values()):
        return
    clear()
    write(f"\n{'':<15}{'samples/s':>10}")
    for name, label in _LABELS.items():
        rounds = figures.rounds.get(name)
        if rounds:
            note = _note(name, figures)
            rate = f"{rate_of(rounds):>10,.0f}  +-{spread_of(rounds):>4.0%}"
            write(f"{label:<15}{rate}  {note}".rstrip())
    if figures.made_up:
        say("", "(the data has no classes: the model got made-up labels)")
    say("engine", subject.loader.engine_choice)
    _print_stages(subject, figures)
    if figures.rounds.get("model") and figures.rounds.get("training"):
        heading(_verdict_text(figures))


def _note(name: str, figures: Figures) -> str:
    rate, floor = figures.rate("loader"), figures.rate("floor")
    if name == "loader" and rate and floor:
        return f"{rate / floor:.2f} of the floor"
    if name == "floor" and figures.floor is not None:
        return figures.floor.text
    if name == "model":
        return "training step on one kept batch"
    if name == "training":
        return f"{times_of(figures.rounds['training']).wait_share:.0%} of the time waiting for data"
    return ""


def _print_stages(subject: Subject, figures: Figures) -> None:
    """Microseconds a sample of each stage, in the threads of the loader."""
    rounds = figures.rounds.get("loader")
    stages = times_of(rounds).stages_us if rounds else {}
    if not stages:
        return
    total = max(sum(stages.values()), 1e-9)
    heading("where the loader's time goes, in each of its threads:")
    for name, each in stages.items():
        write(f"  {name:<13}{each:>10,.1f} us a sample {each / total:>5.0%}")
    write(f"  {'together':<13}{total:>10,.1f} us a sample")
    if rounds and (hit_rate := times_of(rounds).hit_rate) is not None:
        write(f"  the cache had {hit_rate:.0%} of the records")
    if shares := subject.loader.stats.shares:
        write(f"  drawn: {sources_text(shares)}")


def verdict(figures: Figures) -> Literal["loader", "model"]:
    """Tell which of the two training waits for."""
    loader, model = figures.rate("loader"), figures.rate("model")
    return "loader" if loader is not None and model is not None and loader < model else "model"


def _verdict_text(figures: Figures) -> str:
    loader, model = figures.rate("loader"), figures.rate("model")
    training = figures.rate("training")
    assert loader is not None and model is not None and training is not None
    share = times_of(figures.rounds["training"]).wait_share
    if verdict(figures) == "loader":
        text = (f"The loader is the limit: the model could take {model / loader:.1f} times as "
                f"much, and waits {share:.0%} of its time.")  # fmt: skip
    else:
        text = (f"The model is the limit: the loader could give {loader / model:.1f} times as "
                f"much; training waits {share:.0%} of its time for data.")  # fmt: skip
    if training < _SHARED * min(loader, model):
        text += (f" Together they are slower than either alone: they share the "
                 f"{usable_cores()} cores.")  # fmt: skip
    return text
