"""The plot of a sweep: how fast the loader and training are, and how long training waits."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine
from matplotlib.ticker import FuncFormatter, NullLocator, PercentFormatter

from pipeline.commands.bench.screen import rate_of, times_of

if TYPE_CHECKING:
    from pipeline.commands.bench.subject import Round
    from pipeline.commands.bench.sweep import Row

# Paul Tol's "bright" scheme, which the colour-blind can tell apart.
_COLOURS = ("#4477aa", "#ee6677", "#228833", "#ccbb44", "#66ccee", "#aa3377", "#777777")
_TITLES = (
    "Loader alone, samples a second",
    "Training with it, samples a second",
    "Share of training's time that it waits for data",
)
_LOGARITHMIC = 16
"""Numbers that reach over so many times the least are drawn on a logarithmic axis."""


def draw(rows: Sequence[Row], keys: Sequence[str]) -> Figure:
    """Draw a sweep against its first key, in a colour for each value of the second.

    Numbers give lines, other values groups of bars. Marks are medians over the rounds, the
    whiskers hold the middle half of them.

    Args:
        rows: Measured points.
        keys: One or two swept keys.

    Returns:
        A figure of 800 x 800 pixels with an axes for each of `_TITLES`.
    """
    layout = ConstrainedLayoutEngine(w_pad=0.12, h_pad=0.12)
    figure = Figure(figsize=(8, 8), dpi=100, layout=layout)
    panels = figure.subplots(3, 1, sharex=True, height_ratios=(3, 3, 2))
    values = list(dict.fromkeys(row.values[keys[0]] for row in rows))
    numbers = _numbers(values)
    places = dict(zip(values, numbers or range(len(values)), strict=True))
    series = list(dict.fromkeys(row.values[keys[1]] if len(keys) > 1 else "" for row in rows))
    for number, name in enumerate(series):
        own = [row for row in rows if len(keys) == 1 or row.values[keys[1]] == name]
        own.sort(key=lambda row: places[row.values[keys[0]]])
        x = np.array([places[row.values[keys[0]]] for row in own], float)
        look: dict[str, Any] = {"color": _COLOURS[number % len(_COLOURS)], "label": name}
        if numbers is None:
            look["width"] = 0.8 / len(series)
            x += look["width"] * (number - (len(series) - 1) / 2)
        _rates(panels[0], x, [row.loader for row in own], look)
        _rates(panels[1], x, [row.training for row in own], look)
        _marks(panels[2], x, [times_of(row.training).wait_share for row in own], look)
    _dress(panels, keys, places, logarithmic=_is_wide(numbers))
    return figure


def _rates(axes: Any, x: Any, rounds: Sequence[Sequence[Round]], look: dict[str, Any]) -> None:
    """Medians, with whiskers around the middle half of the rounds."""
    middle = np.array([rate_of(each) for each in rounds])
    parts = [np.percentile([r.rate for r in each], (25, 75)) for each in rounds]
    low, high = np.array(parts).T
    _marks(axes, x, middle, look)
    dark = {"color": "#333333" if "width" in look else look["color"], "capsize": 3}
    axes.errorbar(x, middle, yerr=(middle - low, high - middle), fmt="none", **dark)


def _marks(axes: Any, x: Any, heights: Any, look: dict[str, Any]) -> None:
    if "width" in look:
        axes.bar(x, heights, **look)
    else:
        axes.plot(x, heights, "o-", linewidth=1.6, markersize=6, **look)


def _dress(panels: Any, keys: Sequence[str], places: dict[str, float], logarithmic: bool) -> None:
    """Titles, limits, ticks and grid."""
    for axes, title in zip(panels, _TITLES, strict=True):
        axes.set_title(title, loc="left", fontsize="medium", fontweight="bold")
        axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f}"))
        axes.set_ylim(bottom=0)
        axes.grid(axis="y", alpha=0.25)
        axes.set_axisbelow(True)
        axes.spines[["top", "right"]].set_visible(False)
    last = panels[-1]
    last.set_ylim(0, 1)
    last.yaxis.set_major_formatter(PercentFormatter(1))
    if logarithmic:
        last.set_xscale("log", base=2)
    last.set_xticks(list(places.values()), list(places))
    last.xaxis.set_minor_locator(NullLocator())
    last.set_xlabel(keys[0])
    if len(keys) > 1:
        handles, labels = panels[0].get_legend_handles_labels()
        panels[0].figure.legend(
            handles, labels, title=keys[1], loc="outside right upper", frameon=False
        )


def _numbers(values: Sequence[str]) -> list[float] | None:
    """The values as numbers, if all are."""
    try:
        return [float(value) for value in values]
    except ValueError:
        return None


def _is_wide(numbers: Sequence[float] | None) -> bool:
    if not numbers or min(numbers) <= 0:
        return False
    return max(numbers) / min(numbers) >= _LOGARITHMIC
