"""Take several items of a fast iterator at once."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

_SHORT_S = 0.005


def runs(items: Iterator[Any], most: int) -> Iterator[list[Any]]:
    """Yield items in lists: at least one, and up to `most` that arrive within a short time.

    An error is raised after the items before it.
    """
    taken: list[Any] = []
    until = time.perf_counter() + _SHORT_S
    try:
        for item in items:
            taken.append(item)
            if len(taken) == most or time.perf_counter() >= until:
                yield taken
                taken, until = [], time.perf_counter() + _SHORT_S
    except Exception:
        if taken:
            yield taken
        raise
    if taken:
        yield taken
