"""The table of storages, and what it says about this data."""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median

from pipeline.commands.bench.forms import Form, measured
from pipeline.commands.bench.screen import heading, say, width, write
from pipeline.commands.bench.storage_process import BATCH, Measured

_ALIKE = 0.9
_SMALL_SHARE = 0.1
_EXCHANGE = ("parquet", "webdataset")
_LEGEND = (
    f"*: the data as it is. random: records a second in shuffled batches of {BATCH}, by one "
    f"thread; gain: to the first line's, round by round; in order: the same without shuffling. "
    f"size: on the disk; start: a fresh process, to its first record; index: the same when there "
    f"is no cached index yet; "
    f"memory: what a worker that has read all records needs for itself. Everything lies in the "
    f"page cache; a disk that is slower than this gains more from forms that read in long runs. "
    f"Where these are some of the records, a form's own cache is smaller by as much."
)


@dataclass(frozen=True, slots=True)
class Data:
    """What is known of the records.

    Attributes:
        records: How many were packed.
        mean_bytes: Of a record.
        decode_us: Processor time of decoding one, microseconds; None if unknown.
    """

    records: int
    mean_bytes: float
    decode_us: float | None


def middle(form: Form, value: Callable[[Measured], float]) -> float:
    """The median of the rounds."""
    return median(map(value, form.rounds))


def random_rate(form: Form) -> float:
    """Records a second, at random."""
    return middle(form, lambda found: found.random)


def gain(form: Form, source: Form) -> float | None:
    """Its random reads by the source's of the same round, the median; None without the source's."""
    pairs = zip(form.rounds, source.rounds, strict=False)
    ratios = [mine.random / max(other.random, 1e-9) for mine, other in pairs]
    return median(ratios) if ratios else None


def by_speed(forms: Sequence[Form]) -> list[Form]:
    """The source first, then the others, the fastest at random first."""
    source, *others = forms
    return [*measured([source]), *sorted(measured(others), key=random_rate, reverse=True)]


def print_table(forms: Sequence[Form]) -> None:
    """Print a line for each form, and below it those that were not measured.

    Args:
        forms: The source first.
    """
    heads = ("form", "random", "gain", "in order", "size", "start", "index", "memory")
    lines = [heads, *(_cells(form, forms[0]) for form in by_speed(forms))]
    write("")
    for block in blocks(lines, width()):
        for line in block:
            write(line)
    heading(_LEGEND)
    if any(form.why or (form.first is not None and form.first.bad) for form in forms):
        write("")
    for form in forms:
        if form.why:
            say("failed" if form.opens else "not possible", f"{form.name}: {form.why}")
        elif form.first is not None and form.first.bad:
            say("unreadable", f"{form.name}: {form.first.bad:,} of its records cannot be read")


def _cells(form: Form, source: Form) -> tuple[str, ...]:
    assert form.first is not None
    ratio = gain(form, source)
    return (
        form.name,
        f"{random_rate(form):,.0f}/s",
        "-" if ratio is None else f"{ratio:.2f}",
        f"{middle(form, lambda found: found.sequential):,.0f}/s",
        _megabytes(form.size_bytes),
        _seconds(middle(form, lambda found: found.open_s)),
        _seconds(form.first.open_s),
        _megabytes(form.first.own_bytes),
    )


def _megabytes(size_bytes: int | None) -> str:
    return "-" if size_bytes is None else f"{size_bytes / 1e6:,.1f} MB"


def _seconds(seconds: float) -> str:
    return f"{seconds:.2f} s"


def blocks(lines: Sequence[Sequence[str]], columns: int) -> list[list[str]]:
    """Lines of cells as aligned text: one table, or several below each other where it is narrow.

    Args:
        lines: Cells, the heads first; the first of each names its line, and is in every table.
        columns: The most characters of a line.

    Returns:
        Lines of each table; all but the first begin with an empty one.
    """
    widths = [max(map(len, cells)) for cells in zip(*lines, strict=True)]
    parts: list[list[int]] = [[]]
    for place in range(1, len(widths)):
        taken = widths[0] + sum(2 + widths[other] for other in (*parts[-1], place))
        if taken > columns and parts[-1]:
            parts.append([])
        parts[-1].append(place)
    tables = []
    for number, part in enumerate(parts):
        table = [""] if number else []
        for cells in lines:
            rest = "".join(f"  {cells[place]:>{widths[place]}}" for place in part)
            table.append(f"{cells[0]:<{widths[0]}}{rest}".rstrip())
        tables.append(table)
    return tables


def print_advice(forms: Sequence[Form], data: Data) -> None:
    """Print what the figures say about these records."""
    text = advice(forms, data)
    if text:
        write("")
        for line in textwrap.wrap(text, width(), break_on_hyphens=False):
            write(line)


def advice(forms: Sequence[Form], data: Data) -> str:
    """One to three sentences about these records.

    Args:
        forms: The source first; those without figures are passed over.
        data: What the records are.
    """
    ranked = by_speed(forms)
    source = next((form for form in ranked if form is forms[0]), None)
    packed = [form for form in ranked if form is not source]
    if not packed:
        return ""
    best = packed[0]
    alike = [form.name for form in packed if random_rate(form) >= _ALIKE * random_rate(best)]
    ratio = None if source is None else gain(best, source)
    size = f"records of {data.mean_bytes / 1e3:,.1f} kB"
    if ratio is not None and ratio * _ALIKE <= 1:
        said = [f"For shuffled reading of {size}, no form beats the data as it is here."]
    else:
        more = "" if ratio is None else f", {ratio:.1f} times as fast as the data as it is"
        said = [f"For shuffled reading of {size}: {' or '.join(alike)}{more}."]
    if data.decode_us is not None:
        slowest = middle(source or packed[-1], lambda found: found.random_us)
        share = slowest / (slowest + data.decode_us)
        verdict = (
            "so the form decides little about speed from the page cache"
            if share < _SMALL_SHARE
            else f"so reading is {share:.0%} of the two together"
        )
        what = "it as it is" if source is not None else f"it from {packed[-1].name}"
        said.append(
            f"Decoding a record takes {data.decode_us:,.0f} µs of the processor, reading {what} "
            f"{slowest:,.0f} µs, {verdict}."
        )
    others = [
        f"{form.name} ({_megabytes(form.size_bytes)})" for form in packed if form.name in _EXCHANGE
    ]
    if others:
        said.append(f"To exchange with other programs: {' or '.join(sorted(others))}.")
    return " ".join(said)
