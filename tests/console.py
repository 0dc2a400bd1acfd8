"""The `penstock` command, run inside the test process."""

from __future__ import annotations

import sys
from importlib.metadata import entry_points

import pytest


def penstock(*words: str) -> int:
    """Run ``penstock WORDS`` and return its exit status; output goes to the captured streams."""
    [script] = entry_points(group="console_scripts", name="penstock")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", ["penstock", *words])
        with pytest.raises(SystemExit) as ended:
            script.load()()
    status = ended.value.code
    return status if isinstance(status, int) else int(status is not None)
