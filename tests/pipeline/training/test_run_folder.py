"""Which runs are equal, so that one can go on with the other."""

from __future__ import annotations

from dataclasses import fields

import pytest

from penstock.pipeline.loader.settings import LoaderSettings
from penstock.pipeline.training.run_folder import comparable

# Of the loader, what decides which samples are in a batch, of training or of evaluation.
DECIDING = {
    "batch_size", "eval_batch_size", "drop_last", "on_error", "eval_on_error",
}  # fmt: skip


@pytest.mark.parametrize("name", [field.name for field in fields(LoaderSettings)])
def test_runs_that_differ_in_a_setting_of_the_loader_are_equal_unless_it_decides(name):
    first, second = (
        {"dataset": {}, "loader": {name: value}, "trainer": {}} for value in ("one", "other")
    )
    assert (comparable(first) != comparable(second)) == (name in DECIDING)
