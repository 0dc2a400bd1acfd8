"""Types of the options of steps, and ranges that they share."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

from annotated_types import Ge, Gt, Le

Share = Annotated[float, Ge(0), Le(1)]
Positive = Annotated[float, Gt(0)]
Side = Annotated[int, Ge(1)]
Sides = Side | tuple[Side, Side]
Amount = Annotated[float, Ge(0)]
Turns = Annotated[float, Ge(0), Le(0.5)]


def sides_of(size: Sides) -> tuple[int, int]:
    """Return height and width of a size, [height, width] or one number for both."""
    return (size, size) if isinstance(size, int) else (size[0], size[1])


def check_ordered(name: str, **ranges: Sequence[float]) -> None:
    """Raise ValueError if the first number of a range is the larger one."""
    for option, (low, high) in ranges.items():
        if low > high:
            raise ValueError(f"{name}: {option} is [{low}, {high}]; give the lower one first")
