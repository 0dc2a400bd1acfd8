"""Every callback keeps the contract of its group."""

from __future__ import annotations

import pytest

from tests.contracts.callback import check_callback


@pytest.mark.parametrize(
    ("name", "arguments"),
    [("ema", {"decay": 0.9}), ("early_stopping", {"patience": 9}), ("profile", {})],
)
def test_a_run_resumes_exactly(tmp_path, name, arguments):
    check_callback(name, arguments, tmp_path)
