"""All pairs of factor levels in few cases (greedy, as in Cohen et al., IEEE TSE 23(7), 1997)."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from itertools import combinations, product
from typing import Any

Case = dict[str, Any]


def pairwise(
    factors: Mapping[str, Sequence[Any]], allowed: Callable[[Case], bool], *, tries: int = 60
) -> list[Case]:
    """Return cases that contain every allowed pair of levels.

    Args:
        factors: Levels by name.
        allowed: Whether a whole or partial case can be run.
        tries: Random candidates for each case.
    """
    draw = random.Random(0)
    names = sorted(factors)
    open_pairs = {
        ((a, x), (b, y))
        for a, b in combinations(names, 2)
        for x, y in product(factors[a], factors[b])
        if allowed({a: x, b: y})
    }
    cases = []
    while open_pairs:
        seed = dict(min(open_pairs, key=repr))
        candidates = [
            case
            for _ in range(tries)
            if allowed(case := {n: seed.get(n, draw.choice(factors[n])) for n in names})
        ]
        best = max(candidates, key=lambda case: len(_covered(case) & open_pairs))
        cases.append(best)
        open_pairs -= _covered(best)
    return cases


def _covered(case: Case) -> set[Any]:
    return set(combinations(sorted(case.items()), 2))
