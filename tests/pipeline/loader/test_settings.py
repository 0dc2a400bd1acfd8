"""Settings that cannot work are refused where they are made."""

from __future__ import annotations

import pytest

from penstock.pipeline.loader.settings import LoaderSettings


def test_an_engine_that_nobody_has_is_refused_before_there_is_data():
    with pytest.raises(ValueError, match=r"loader.engine is 'warp'; engines: inline, proc"):
        LoaderSettings(engine="warp")


def test_a_start_method_is_of_torch_alone():
    with pytest.raises(ValueError, match="type loader=torch"):
        LoaderSettings(engine="processes", multiprocessing_context="spawn")
