"""Settings that cannot work are refused where they are made."""

from __future__ import annotations

import math

import pytest

from penstock.pipeline.loader.settings import LoaderSettings


@pytest.mark.parametrize("wrong", [0, -1.0, 1e8, math.inf, math.nan])
def test_a_wait_that_no_clock_takes_is_refused(wrong):
    with pytest.raises(ValueError, match=r"timeout_s is .*: input should be (greater|less)"):
        LoaderSettings(timeout_s=wrong)


def test_an_engine_that_nobody_has_is_refused_before_there_is_data():
    with pytest.raises(ValueError, match=r"loader.engine is 'warp'; engines: inline, proc"):
        LoaderSettings(engine="warp")


def test_a_start_method_is_of_torch_alone():
    with pytest.raises(ValueError, match="type loader=torch"):
        LoaderSettings(engine="processes", multiprocessing_context="spawn")


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"batch_size": 0}, "loader.batch_size is 0: .* greater than or equal to 1"),
        ({"eval_batch_size": 0}, "eval_batch_size is 0: .* greater than or equal to 1"),
        ({"num_workers": "many"}, "num_workers is 'many': .* integer, or input should be 'auto'"),
        ({"prefetch_factor": 1025}, "prefetch_factor is 1025: .* less than or equal to 1024"),
    ],
)
def test_numbers_are_bounded(wrong, message):
    with pytest.raises(ValueError, match=message):
        LoaderSettings(**wrong)
    assert LoaderSettings(batch_size=1 << 20).batch_size == 1 << 20
