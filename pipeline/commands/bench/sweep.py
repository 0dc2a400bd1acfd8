"""Measure several configurations side by side: a table."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass, field
from statistics import median
from typing import TYPE_CHECKING

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
    from penstock.pipeline.commands.bench.points import Point, Points


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
    """Measure all points in alternating rounds, and print a table.

    Returns:
        1 if a point could not be measured, else 0.
    """
    settings: BenchSettings = build_settings(points.points[0].config["bench"])
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
    lines = []
    for row in rows:
        told = ["-"] * 6
        if row.known:
            told = [
                f"{rate_of(row.loader):,.0f}", f"{ratio(row, first):.2f}",
                f"{rate_of(row.training):,.0f}", f"{times_of(row.training).wait_share:.0%}",
                megabytes(row.memory_bytes), f"{row.first_batch_s:.2f} s",
            ]  # fmt: skip
        lines.append([*(row.values[key] for key in keys), *told])
    write_table(heads, lines, names=len(keys))
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
