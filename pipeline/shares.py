"""Whole numbers in proportion to weights: how many of the first t draws each source has had."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from math import gcd, lcm


def whole_weights(weights: Sequence[float]) -> tuple[int, ...]:
    """The same proportions in whole numbers, exactly, so that nothing is ever rounded away.

    Args:
        weights: Finite, none below zero, not all zero.
    """
    fractions = [Fraction(weight) for weight in weights]
    scale = lcm(*(fraction.denominator for fraction in fractions))
    numbers = [int(fraction * scale) for fraction in fractions]
    common = gcd(*numbers)
    return tuple(number // common for number in numbers)


def counts_at(total: int, weights: Sequence[int]) -> list[int]:
    """Of the first `total` draws, how many belong to each source, by cumulative rounding.

    The sources are halved, one half is given its rounded share, the other the rest, and so on in
    each half. So the counts add up to `total`, none ever falls when `total` grows, and each is
    within half a draw of its exact share per halving: for S sources within ceil(log2 S) / 2, one
    draw for three or four of them. (Rounding sums of shares instead is a little closer, but takes
    draws back from a source whose share is small.)

    Args:
        total: Number of draws, as large as one likes.
        weights: Of each source, whole numbers.

    Returns:
        A count for each source; 0 where the weight is.
    """
    if len(weights) == 1:
        return [total]
    middle = len(weights) // 2
    part, whole = sum(weights[:middle]), sum(weights)
    first = (2 * total * part + whole) // (2 * whole) if whole else 0
    return counts_at(first, weights[:middle]) + counts_at(total - first, weights[middle:])
