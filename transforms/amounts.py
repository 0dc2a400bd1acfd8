"""Ranges of brightness, contrast, saturation and hue, as torchvision reads them."""

from __future__ import annotations

from collections.abc import Sequence

Amount = float | Sequence[float]


def amount_range(value: Amount, name: str, *, hue: bool = False) -> tuple[float, float]:
    """Return the least and largest factor, or turns of the hue.

    A number is the distance from 1 (from 0 for the hue), a pair is the range itself. Raise
    ValueError for negative factors and for turns outside -0.5 .. 0.5.
    """
    centre, least, most = (0.0, -0.5, 0.5) if hue else (1.0, 0.0, float("inf"))
    if isinstance(value, (int, float)):
        low, high = centre - value, centre + value
        low = low if hue else max(low, least)
    else:
        low, high = value if len(value) == 2 else (1.0, 0.0)
    if not least <= low <= high <= most:
        expected = "0 or more, or [least, largest] from 0 on"
        if hue:
            expected = "0 .. 0.5, or [least, largest] within -0.5 .. 0.5"
        raise ValueError(f"{name} is {value}, expected {expected}")
    return float(low), float(high)
