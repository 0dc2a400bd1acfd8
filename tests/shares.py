"""Shares of many like cases: some for every run, the others for the slow ones."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product
from typing import Any

import pytest


def in_turn(*axes: Sequence[Any], every: int = 2) -> list[Any]:
    """All combinations of axes; each `every`-th along each axis is quick, the others are slow.

    Every value of an axis stands in a quick one, if another axis has at least `every` values.
    """
    found = []
    for places in product(*(range(len(axis)) for axis in axes)):
        values = [axis[place] for axis, place in zip(axes, places, strict=True)]
        marks = () if sum(places) % every == 0 else pytest.mark.slow
        found.append(pytest.param(*values, marks=marks))
    return found
