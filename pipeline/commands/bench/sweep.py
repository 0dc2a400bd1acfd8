"""Measure several configurations side by side: a table and a plot."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

import numpy as np

from penstock.datasets.files.access import is_url
from penstock.pipeline.build import build_settings
from penstock.pipeline.commands.bench.report import (
    FAILURES,
    clear,
    doing,
    heading,
    last_line,
    megabytes,
    rate_of,
    say,
    times_of,
    write_table,
)
from penstock.pipeline.commands.bench.subject import Round, Subject, alternate

if TYPE_CHECKING:
    from penstock.pipeline.commands.bench import BenchSettings
    from penstock.pipeline.config.sweep import Point, Points


# Paul Tol's "bright" scheme, which the colour-blind can tell apart.
_COLOURS = ("#4477aa", "#ee6677", "#228833", "#ccbb44", "#66ccee", "#aa3377", "#777777")
_TITLES = (
    "Loader alone, samples a second",
    "Training with it, samples a second",
    "Share of training's time that it waits for data",
)
_LOGARITHMIC = 16
"""Numbers that reach over so many times the least are drawn on a logarithmic axis."""


@dataclass(slots=True)
class Row:
    """The measurements of one point.

    Attributes:
        values: Of the swept keys.
        loader: Rounds of the loader alone.
        training: Rounds of training with it.
        first_batch_s: Seconds to the first batch.
        memory_bytes: What the loader takes; None where the system does not say.
        failed: Why it could not be measured, or "".
    """

    values: dict[str, str]
    loader: list[Round] = field(default_factory=list)
    training: list[Round] = field(default_factory=list)
    first_batch_s: float = 0.0
    memory_bytes: int | None = None
    failed: str = ""

    @property
    def known(self) -> bool:
        """Whether both were measured."""
        return bool(self.loader and self.training)


def measure_sweep(points: Points) -> int:
    """Measure all points in alternating rounds; print a table and draw a plot.

    Returns:
        1 if a point could not be measured, else 0.

    Raises:
        ValueError: The plot's path cannot be one.
    """
    config = points.points[0].config
    settings: BenchSettings = build_settings(config["bench"])
    outputs = "outputs" if is_url(config["outputs"]) else config["outputs"]
    path = plot_path(settings, Path(outputs))
    if settings.trace is not None:
        raise ValueError("bench.trace: a sweep writes no trace; give one value to every key")
    count = len(points.points)
    say("bench", f"{count} points, about {count * (2 * settings.seconds + 3):.0f} s; Ctrl-C ends "
        "it with what is known so far")  # fmt: skip
    rows = [Row(point.values) for point in points.points]
    with ExitStack() as stack:
        stack.callback(clear)
        try:
            _measure(points.points, rows, settings, stack)
        finally:
            if any(row.known for row in rows):
                print_rows(rows, points.keys)
    if any(row.known for row in rows):
        path.parent.mkdir(parents=True, exist_ok=True)
        draw([row for row in rows if row.known], points.keys).savefig(path)
        say("plot", str(path))
    return int(any(row.failed for row in rows))


def _measure(
    points: tuple[Point, ...], rows: list[Row], settings: BenchSettings, stack: ExitStack
) -> None:
    opened: list[tuple[Row, Subject]] = []
    for number, (point, row) in enumerate(zip(points, rows, strict=True), start=1):
        doing(f"starting {number} of {len(points)}: {_named(row.values)}")
        try:
            subject = stack.enter_context(Subject(point.config, settings.split))
        except FAILURES as error:
            row.failed = last_line(error)
            continue
        row.first_batch_s, row.memory_bytes = subject.first_batch_s, subject.memory_bytes
        opened.append((row, subject))
    doing(f"measuring {len(opened)} points, {settings.rounds} rounds")
    measures = [subject.loader_round for _, subject in opened]
    measures += [subject.training_round for _, subject in opened]
    for results in alternate(measures, seconds=settings.seconds, rounds=settings.rounds):
        for place, (row, _) in enumerate(opened):
            row.loader, row.training = results[place], results[len(opened) + place]


def _named(values: dict[str, str]) -> str:
    return " ".join(f"{key}={value}" for key, value in values.items())


def ratio(row: Row, first: Row) -> float:
    """The loader's rate by the first point's, the median over rounds."""
    pairs = zip(row.loader, first.loader, strict=False)
    return median(a.rate / max(b.rate, 1e-9) for a, b in pairs)


def print_rows(rows: list[Row], keys: tuple[str, ...]) -> None:
    """Print the table, a line for each point; below it, what could not be measured."""
    names = [short(key, keys) for key in keys]
    heads = [*names, "loader/s", "ratio", "training/s", "waiting", "memory", "first"]
    first = next(row for row in rows if row.known)
    lines = [heads]
    for row in rows:
        cells = [row.values[key] for key in keys]
        if not row.known:
            lines.append([*cells, *["-"] * 6])
            continue
        lines.append([
            *cells, f"{rate_of(row.loader):,.0f}", f"{ratio(row, first):.2f}",
            f"{rate_of(row.training):,.0f}", f"{times_of(row.training).wait_share:.0%}",
            megabytes(row.memory_bytes), f"{row.first_batch_s:.2f} s",
        ])  # fmt: skip
    write_table(lines, names=len(keys))
    heading(
        "loader/s: samples a second of the loader alone; ratio: to the first line, round by "
        "round; training/s: with the training step; waiting: its share in that; memory: what "
        "the loader takes; first: seconds to the first batch, workers started. The first line "
        "bears what is loaded once for all."
    )
    for row in rows:
        if row.failed:
            say("failed", f"{_named(row.values)}: {row.failed}")


def short(key: str, keys: tuple[str, ...]) -> str:
    """The last part of a key, if that names it alone."""
    last = key.rpartition(".")[2]
    return last if sum(other.rpartition(".")[2] == last for other in keys) == 1 else key


def plot_path(settings: BenchSettings, outputs: Path) -> Path:
    """Choose the file of the plot.

    Raises:
        ValueError: The configured path is no PNG's.
    """
    if settings.plot is None:
        return outputs / "bench" / f"{datetime.now():%Y-%m-%d_%H-%M-%S}" / "bench.png"
    path = Path(settings.plot).expanduser()
    if path.suffix.lower() != ".png" or path.is_dir():
        raise ValueError(f"bench.plot: {settings.plot!r} given, expected a file *.png")
    return path


def draw(rows: Sequence[Row], keys: Sequence[str]) -> Any:
    """Draw a sweep against its first key, in a colour for each value of the second.

    Marks are medians over the rounds, the whiskers hold the middle half of them; between numbers
    there are lines.

    Args:
        rows: Measured points.
        keys: One or two swept keys.

    Returns:
        A figure of 800 x 800 pixels with an axes for each of `_TITLES`.
    """
    from matplotlib.figure import Figure
    from matplotlib.ticker import NullLocator, PercentFormatter, StrMethodFormatter

    figure = Figure(figsize=(8, 8), dpi=100, layout="constrained")
    panels = figure.subplots(3, 1, sharex=True, height_ratios=(3, 3, 2))
    for axes in panels:
        axes.set_prop_cycle(color=_COLOURS)
    values = list(dict.fromkeys(row.values[keys[0]] for row in rows))
    numbers = _numbers(values)
    places = dict(zip(values, numbers or range(len(values)), strict=True))
    for name in dict.fromkeys(row.values[keys[-1]] if len(keys) > 1 else "" for row in rows):
        own = [row for row in rows if len(keys) == 1 or row.values[keys[1]] == name]
        own.sort(key=lambda row: places[row.values[keys[0]]])
        x = [places[row.values[keys[0]]] for row in own]
        measured = (
            [[each.rate for each in row.loader] for row in own],
            [[each.rate for each in row.training] for row in own],
            [[times_of(row.training).wait_share] for row in own],
        )
        for axes, rounds in zip(panels, measured, strict=True):
            low, middle, high = np.array([np.percentile(r, (25, 50, 75)) for r in rounds]).T
            marks = "o" if numbers is None else "o-"
            axes.errorbar(
                x, middle, (middle - low, high - middle), fmt=marks, capsize=3, label=name
            )
    for axes, title in zip(panels, _TITLES, strict=True):
        axes.set_title(title, loc="left", fontsize="medium", fontweight="bold")
        axes.yaxis.set_major_formatter(StrMethodFormatter("{x:,.0f}"))
        axes.set_ylim(bottom=0)
        axes.grid(axis="y", alpha=0.25)
        axes.spines[["top", "right"]].set_visible(False)
    last = panels[-1]
    last.set_ylim(0, 1)
    last.yaxis.set_major_formatter(PercentFormatter(1))
    if numbers is not None and 0 < _LOGARITHMIC * min(numbers) <= max(numbers):
        last.set_xscale("log", base=2)
    last.set_xticks(list(places.values()), list(places))
    last.xaxis.set_minor_locator(NullLocator())
    last.set_xlabel(keys[0])
    if len(keys) > 1:
        handles, labels = panels[0].get_legend_handles_labels()
        figure.legend(handles, labels, title=keys[1], loc="outside right upper", frameon=False)
    return figure


def _numbers(values: Sequence[str]) -> list[float] | None:
    """The values as numbers, if all are."""
    try:
        return [float(value) for value in values]
    except ValueError:
        return None
