"""Whole numbers in proportion: nobody ever loses a draw, or is far from its share."""

from __future__ import annotations

from fractions import Fraction
from itertools import pairwise
from math import ceil, log2

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from penstock.pipeline.samplers.mix import counts_at, whole_weights

WEIGHTS = st.lists(
    st.one_of(st.just(0.0), st.floats(1e-6, 1e6), st.integers(1, 9).map(float)),
    min_size=1, max_size=9,
).filter(any)  # fmt: skip


@settings(max_examples=60, suppress_health_check=[HealthCheck.too_slow])
@given(WEIGHTS, st.lists(st.integers(0, 10**15), min_size=1, max_size=8))
def test_counts_add_up_grow_and_are_near_the_exact_share(weights, totals):
    whole = whole_weights(weights)
    shares = [Fraction(weight) / sum(map(Fraction, weights)) for weight in weights]
    assert [Fraction(w, sum(whole)) for w in whole] == shares
    bound = Fraction(ceil(log2(len(weights))), 2)
    before = [0] * len(weights)
    for total in sorted([*totals, totals[0] + 1]):
        counts = counts_at(total, whole)
        assert sum(counts) == total
        assert all(now >= then for now, then in zip(counts, before, strict=True))
        for count, share in zip(counts, shares, strict=True):
            assert abs(count - total * share) <= bound
            assert share or not count
        before = counts


def test_every_total_in_turn():
    whole = whole_weights([0.7, 0.1, 0.1, 0.05, 0.05])
    counts = [counts_at(total, whole) for total in range(3_000)]
    for before, after in pairwise(counts):
        assert sum(b - a for a, b in zip(before, after, strict=True)) == 1
        assert all(b >= a for a, b in zip(before, after, strict=True))
    assert counts[2_000] == [1_400, 200, 200, 100, 100]


def test_scale_does_not_matter():
    for weights in ([3, 1], [0.75, 0.25], [3e9, 1e9]):
        assert whole_weights(weights) == (3, 1)


def test_many_sources_are_halved_and_not_split_off_one_by_one():
    whole = whole_weights([1 + number / 100 for number in range(64)])
    worst = max(
        abs(count - total * weight / sum(whole))
        for total in range(0, 6_000, 7)
        for count, weight in zip(counts_at(total, whole), whole, strict=True)
    )
    assert worst < 1.25
