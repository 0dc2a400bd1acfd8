"""Which runs are equal, so that one can go on with the other."""

from __future__ import annotations

from dataclasses import fields

import pytest

from penstock.pipeline.config.components import register_components
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


def test_runs_are_equal_whatever_they_are_called_and_whoever_is_told():
    first = {"dataset": {}, "loader": {}, "trainer": {}, "seed": 1}
    second = {**first, "run": {"name": "a"}, "outputs": "there", "logger": {"csv": {}}}
    assert comparable(first) == comparable(second) != comparable({**second, "seed": 2})


def test_runs_are_equal_whatever_only_watches_them_and_not_with_another_average():
    def run(**callbacks):
        nodes = {name: {"_target_": f"callback/{name}", **each} for name, each in callbacks.items()}
        return comparable({"dataset": {}, "loader": {}, "trainer": {}, "callback": nodes})

    register_components()
    of_old = comparable({"dataset": {}, "loader": {}, "trainer": {}})
    assert run() == of_old == run(early_stopping={"patience": 3}, profile={})
    assert run(ema={"decay": 0.9}) not in (run(), run(ema={"decay": 0.99}))
