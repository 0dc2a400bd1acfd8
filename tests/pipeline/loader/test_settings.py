"""Settings that cannot work are refused where they are made."""

from __future__ import annotations

import math

import pytest

from pipeline.loader.settings import LoaderSettings


@pytest.mark.parametrize("wrong", [0, -1.0, 1e8, math.inf, math.nan])
def test_a_wait_that_no_clock_takes_is_refused(wrong):
    with pytest.raises(ValueError, match=r"loader\.timeout_s is .*; needs more than 0, up to 1e"):
        LoaderSettings(timeout_s=wrong)
