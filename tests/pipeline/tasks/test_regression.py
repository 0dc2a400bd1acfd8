"""Regression: scaled losses, metrics in the target's units, rows that do not count."""

from __future__ import annotations

import math
from types import SimpleNamespace

import pytest
import torch

from penstock.pipeline.tasks.regression import Regression
from penstock.transforms.table_statistics import NumericColumn
from tests.contracts.task import Linear, check_task

TABLE = SimpleNamespace(
    statistics=SimpleNamespace(target=NumericColumn("t", 9, 0, 100.0, 10.0, 0, 200, (90, 100, 110)))
)


def batch_of(valid=(True, True, True)):
    targets = torch.tensor([90.0, 110.0, math.inf if not all(valid) else 130.0])
    return {"target": targets, "valid": torch.tensor(valid), "key": list("abc")}


def test_the_loss_is_the_mean_of_scaled_squares_over_valid_rows():
    outputs = torch.zeros(3, 1, requires_grad=True)
    task = Regression(table=TABLE)
    assert task.losses(outputs, batch_of())["mse"].item() == pytest.approx((1 + 1 + 9) / 3)
    loss = task.losses(outputs, batch_of((True, True, False)))["mse"]
    assert loss.item() == pytest.approx(1)
    loss.backward()
    assert outputs.grad is not None and outputs.grad.flatten().tolist() == [1.0, -1.0, 0.0]
    assert Regression(table=TABLE, loss="mae").losses(outputs, batch_of())["mae"].item() == (
        pytest.approx(5 / 3)
    )


def test_rows_that_are_not_valid_change_nothing():
    batch = {**batch_of(), "x": torch.randn(3, 5)}
    check_task(Regression(table=TABLE), Linear(5, 1), batch)


def test_metrics_have_the_units_of_the_target():
    task, batch = Regression(table=TABLE), batch_of()
    metrics = task.metrics()
    task.update(metrics, torch.tensor([-1.0, 1.0, 2.0]), batch)
    figures = metrics.compute()
    assert figures["mae"].item() == pytest.approx(10 / 3)
    assert figures["rmse"].item() == pytest.approx(math.sqrt(100 / 3))
    assert figures["r2"].item() == pytest.approx(1 - 100 / 800)
    one = task.metrics()
    task.update(one, torch.zeros(1), {"target": torch.tensor([90.0])})
    assert math.isnan(one.compute()["r2"])


def test_what_cannot_be_learned_is_said():
    with pytest.raises(ValueError, match="no column is to be predicted"):
        Regression(table=SimpleNamespace(statistics=SimpleNamespace(target=None)))
    with pytest.raises(ValueError, match=r"expected numbers as 'target' in the batch, got key"):
        Regression().losses(torch.zeros(2), {"key": ["a", "b"]})
    with pytest.raises(ValueError, match="expected one number for each of 3 rows"):
        Regression().losses(torch.zeros(3, 4), batch_of())
