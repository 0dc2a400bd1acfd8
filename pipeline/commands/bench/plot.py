"""The plot of a sweep: how fast the loader and training are, and how long training waits."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, PercentFormatter

from pipeline.commands.bench.screen import rate_of, times_of

if TYPE_CHECKING:
    from pipeline.commands.bench.subject import Round
    from pipeline.commands.bench.sweep import Row

# Paul Tol's "bright" scheme, which the colour-blind can tell apart.
_COLOURS = ("#4477aa", "#ee6677", "#228833", "#ccbb44", "#66ccee", "#aa3377", "#777777")


def draw(rows: Sequence[Row], keys: Sequence[str]) -> Figure:
    """Draw a sweep.

    Above, samples a second against the first key, a line for every value of the second: solid
    the loader alone, dashed training with it, with the range over the rounds; below, the share
    of the time that training waits.

    Args:
        rows: Measured points.
        keys: One or two swept keys.

    Returns:
        A figure of 800 x 640 pixels.
    """
    figure = Figure(figsize=(8, 6.4), dpi=100, layout="constrained")
    rates, waits = figure.subplots(2, 1, sharex=True, height_ratios=(3, 1.2))
    values = list(dict.fromkeys(row.values[keys[0]] for row in rows))
    numbers = _numbers(values)
    places = dict(zip(values, numbers or range(len(values)), strict=True))
    series = list(dict.fromkeys(row.values[keys[1]] if len(keys) > 1 else "" for row in rows))
    for number, name in enumerate(series):
        own = [row for row in rows if len(keys) == 1 or row.values[keys[1]] == name]
        own.sort(key=lambda row: places[row.values[keys[0]]])
        colour = _COLOURS[number % len(_COLOURS)]
        label = f"{keys[1].rpartition('.')[2]}={name}: " if name else ""
        x = [places[row.values[keys[0]]] for row in own]
        look: dict[str, Any] = {"color": colour, "capsize": 3, "markersize": 6, "linewidth": 1.6}
        _bars(rates, x, [row.loader for row in own], label=f"{label}loader alone", fmt="o-", **look)
        _bars(rates, x, [row.training for row in own], label=f"{label}training", fmt="s--",
              markerfacecolor="white", **look)  # fmt: skip
        shares = [times_of(row.training).wait_share for row in own]
        waits.plot(x, shares, "s--", color=colour, markerfacecolor="white", linewidth=1.6)
    _dress(rates, waits, keys[0], places)
    return figure


def _bars(axes: Any, x: Sequence[float], rounds: Sequence[Sequence[Round]], **look: Any) -> None:
    """Medians with the range over the rounds."""
    middle = [rate_of(each) for each in rounds]
    low = [m - min(r.rate for r in each) for m, each in zip(middle, rounds, strict=True)]
    high = [max(r.rate for r in each) - m for m, each in zip(middle, rounds, strict=True)]
    axes.errorbar(x, middle, yerr=(low, high), **look)


def _dress(rates: Any, waits: Any, key: str, places: dict[str, float]) -> None:
    """Labels, limits and grid."""
    rates.set_title("Loader and training speed", loc="left", fontweight="bold")
    rates.set_ylabel("samples a second")
    rates.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f}"))
    rates.set_ylim(bottom=0)
    rates.legend(frameon=False, loc="best")
    waits.set_ylabel("training waits")
    waits.yaxis.set_major_formatter(PercentFormatter(1))
    waits.set_ylim(-0.03, 1.03)
    waits.set_xticks(list(places.values()), list(places))
    waits.set_xlabel(key)
    for axes in (rates, waits):
        axes.grid(alpha=0.25)
        axes.spines[["top", "right"]].set_visible(False)


def _numbers(values: Sequence[str]) -> list[float] | None:
    """The values as numbers, if all are."""
    try:
        return [float(value) for value in values]
    except ValueError:
        return None
