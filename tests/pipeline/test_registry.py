"""Registration refuses what no config could name."""

from __future__ import annotations

import pytest

from penstock.core import registry


def test_a_default_that_no_config_can_hold_is_refused_and_leaves_nothing():
    with pytest.raises(ValueError, match="sampler/unwritable: no config can hold the default of f"):

        @registry.register("sampler", "unwritable")
        def unwritable(n: int, *, f: object = len) -> None:
            """Never made."""

    assert registry.find("sampler/unwritable") is None
