"""Which schedules are others when a run is longer."""

from __future__ import annotations

import pytest

from penstock.pipeline.config.compose import compose
from penstock.pipeline.schedulers.units import depends_on_length, interval_of


@pytest.mark.parametrize(
    ("typed", "depends", "interval"),
    [
        (["scheduler=none"], False, "step"),
        (["scheduler=cosine"], True, "step"),
        (["scheduler=step"], False, "epoch"),
        (["scheduler=plateau"], False, "epoch"),
    ],
)
def test_a_schedule_says_whether_it_depends_on_the_length_of_the_run(typed, depends, interval):
    config = compose(typed)
    assert depends_on_length(config) == depends
    assert interval_of(config) == interval
