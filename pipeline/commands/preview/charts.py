"""Bar charts as rectangles and texts, which a page and a picture both can draw."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

import numpy as np

Role = Literal["ink", "faint", "grid", "first", "second"]
WIDTH = 440
TEXT = 12
PAD, _TITLE, _NAME, _VALUE = 12, 40, 130, 100
_MOST_BARS, _BINS = 24, 24
_HEIGHT = 150


@dataclass(frozen=True, slots=True)
class Box:
    """A filled rectangle."""

    x: float
    y: float
    width: float
    height: float
    role: Role


@dataclass(frozen=True, slots=True)
class Text:
    """A line of text; `y` is its upper edge, `x` where `anchor` says.

    `room` is the width that it may take.
    """

    x: float
    y: float
    text: str
    anchor: Literal["start", "middle", "end"] = "start"
    role: Role = "ink"
    room: float = WIDTH


@dataclass(slots=True)
class Chart:
    """A chart of `WIDTH` pixels.

    Attributes:
        title: What it shows.
        height: In pixels.
        shapes: What is drawn, the first below the others.
    """

    title: str
    height: float = 0
    shapes: list[Box | Text] = field(default_factory=list)


def bars(title: str, note: str, names: Sequence[str], series: dict[str, Sequence[float]]) -> Chart:
    """Horizontal bars, one for each name and series, with their values and shares.

    Of many names only those with the most and the least of the first series are shown.

    Args:
        title: What is shown.
        note: A remark below the title.
        names: Of the bars.
        series: One or two, by name: a value for each of the names.
    """
    chart = _begun(title, note)
    values = [np.asarray(each, float) for each in series.values()]
    rows: list[int | None] = list(range(len(names)))
    if len(names) > _MOST_BARS:
        order = np.argsort(-values[0], kind="stable").tolist()
        half = _MOST_BARS // 2
        rows = [*order[:half], None, *order[-half:]]
    y = chart.height
    if len(series) > 1:
        x = float(PAD)
        for name, role in zip(series, _roles(), strict=False):
            chart.shapes += [Box(x, y + 3, 10, 10, role), Text(x + 15, y, name, room=150)]
            x += 160
        y += 24
    most = max((float(each.max(initial=0)) for each in values), default=0) or 1.0
    thick = 14 if len(values) == 1 else 9
    room = WIDTH - 2 * PAD - _NAME - _VALUE
    for row in rows:
        if row is None:
            hidden = f"… {len(names) - _MOST_BARS} classes in between …"
            chart.shapes.append(Text(PAD + _NAME, y, hidden, role="faint"))
            y += 20
            continue
        middle = y + len(values) * thick / 2
        name_at = (PAD + _NAME - 8, middle - 8)
        chart.shapes.append(Text(*name_at, names[row], "end", room=_NAME - 8))
        for each, role in zip(values, _roles(), strict=False):
            width = max(each[row] / most * room, 1 if each[row] else 0)
            chart.shapes.append(Box(PAD + _NAME, y + 1, width, thick - 1, role))
            y += thick
        share = [share_text(each[row] / (each.sum() or 1)) for each in values]
        text = f"{values[0][row]:,.0f} · {share[0]}" if len(values) == 1 else " → ".join(share)
        longest = max(float(each[row]) for each in values)
        chart.shapes.append(
            Text(PAD + _NAME + longest / most * room + 6, middle - 8, text, role="faint")
        )
        y += 6
    chart.height = y + PAD
    return chart


def share_text(share: float) -> str:
    """A share in percent, with as many digits as tell a small one from nothing."""
    if share == 0:
        return "0%"
    return f"{share:.1%}" if share >= 0.001 else f"{share * 100:.1g}%"


def histogram(title: str, note: str, values: Sequence[float], unit: str) -> Chart:
    """How often values occur, in bins of a round width.

    Args:
        title: What is shown.
        note: A remark below the title.
        values: At least one.
        unit: Of the values, for the axis.
    """
    data = np.asarray(values, float)
    if data.min() == data.max():
        said = f"{'all' if data.size > 1 else 'it is'} {data[0]:,.4g} {unit}".rstrip()
        return words(title, note, said)
    chart = _begun(title, note)
    whole = bool(np.all(data == np.rint(data)))
    edges = bin_edges(float(data.min()), float(data.max()), whole=whole)
    counts, _ = np.histogram(data, edges)
    bottom = chart.height + 8 + _HEIGHT
    left, right = PAD + 44, WIDTH - PAD
    for share in (0.0, 0.5, 1.0):
        y = bottom - share * _HEIGHT
        count = counts.max() * share
        chart.shapes.append(Box(left, y, right - left, 1, "grid"))
        if count == int(count):
            chart.shapes.append(Text(left - 6, y - 8, f"{count:,.0f}", "end", "faint", 44))
    step = (right - left) / len(counts)
    for number, count in enumerate(counts.tolist()):
        height = count / counts.max() * _HEIGHT
        gap = 1 if step > 4 else 0
        x = left + number * step
        chart.shapes.append(Box(x + gap, bottom - height, step - 2 * gap, height, "first"))
    last = len(counts) if not (whole and edges[1] - edges[0] == 1) else len(counts) - 1
    shift = 0.0 if last == len(counts) else step / 2
    every = max(1, math.ceil(last / 5))
    for number in range(0, last + 1, every):
        # Bins of width 1 hold one whole number each, which stands below their middle.
        value = edges[number] + (0.5 if shift else 0.0)
        text = f"{value:,.0f}" if whole or abs(value) >= 100 else f"{value:.3g}"
        place = left + number * step + shift
        anchor: Literal["middle", "end"] = "end" if place > right - 14 else "middle"
        chart.shapes.append(Text(place, bottom + 6, text, anchor, "faint", 70))
    ends = f"{data.min():,.4g} to {data.max():,.4g} {unit}".rstrip()
    said = f"{ends}, median {np.median(data):,.4g}"
    chart.shapes.append(Text((left + right) / 2, bottom + 24, said, "middle"))
    chart.height = bottom + 24 + 18 + PAD
    return chart


def words(title: str, note: str, said: str) -> Chart:
    """What is told in a line, where there is nothing to be drawn."""
    chart = _begun(title, note)
    chart.shapes.append(Text(PAD, chart.height, said))
    chart.height += 18 + PAD
    return chart


def _roles() -> tuple[Role, Role]:
    return "first", "second"


def _begun(title: str, note: str) -> Chart:
    room = WIDTH - 2 * PAD
    texts: list[Box | Text] = [Text(PAD, 10, title, room=room)]
    if note:
        texts.append(Text(PAD, 27, note, role="faint", room=room))
    return Chart(title, PAD + (_TITLE if note else _TITLE - 16), texts)


def bin_edges(low: float, high: float, *, whole: bool) -> np.ndarray:
    """Edges of at most `_BINS` bins, at multiples of 1, 2 or 5 times a power of ten."""
    if whole and high - low < _BINS:
        return np.arange(low, high + 2) - 0.5
    raw = (high - low) / (_BINS - 2)
    power = 10 ** math.floor(math.log10(raw))
    width = next(factor * power for factor in (1, 2, 5, 10) if factor * power >= raw * (1 - 1e-9))
    width = max(width, 1.0) if whole else width
    first = math.floor(low / width)
    count = math.floor(high / width) - first + 1
    return (first + np.arange(count + 1)) * width
