"""Numbers of images: scaled losses, metrics in their units, figures that a run keeps."""

from __future__ import annotations

import json
import math
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from penstock.datasets.records.table import Table
from penstock.pipeline.tasks.image_regression import ImageRegression
from penstock.pipeline.training.run_folder import FIGURES, kept_figures
from tests.contracts.task import Linear, check_task

NAN = float("nan")


def index_of(ages):
    return Table(list("abcd"), {"value_age": np.array(ages, np.float32)}, None)


def fitted(names=("age",), **figures):
    task = ImageRegression(num_classes=len(names), class_names=names)
    figures = figures or {name: {"mean": 100.0, "deviation": 10.0} for name in names}
    task.learn(figures)
    return task


def batch_of(values):
    values = torch.tensor(values)
    rows = len(values)
    valid = torch.ones(rows, dtype=torch.bool)
    return {"values": values, "valid": valid, "x": torch.randn(rows, 5)}


def data_of(values):
    return SimpleNamespace(index=index_of(values))


def test_figures_are_of_the_training_part_and_kept_with_the_run(tmp_path):
    task = ImageRegression(num_classes=1, class_names=("age",))
    figures = kept_figures(task, data_of([1, 3, NAN, 5]), tmp_path)
    assert figures == {"": {"age": {"mean": 3.0, "deviation": pytest.approx(math.sqrt(8 / 3))}}}
    assert json.loads((tmp_path / FIGURES).read_text()) == figures
    assert kept_figures(task, data_of([9, 9, 9, 9]), tmp_path) == figures
    assert kept_figures(task, data_of([9] * 4), None)[""]["age"]["deviation"] == 1
    with pytest.raises(ValueError, match="a stream has no index"):
        task.fit(None)


def test_the_loss_is_the_mean_of_scaled_distances_that_are_known():
    outputs = torch.zeros(2, 2, requires_grad=True)
    batch = batch_of([[90.0, NAN], [110.0, 130.0]])
    loss = fitted(("a", "b")).losses(outputs, batch)["mse"]
    assert loss.item() == pytest.approx((1 + (1 + 9) / 2) / 2)
    loss.backward()
    assert outputs.grad is not None and outputs.grad.tolist() == [[1, 0], [-0.5, -1.5]]


def test_rows_that_are_not_valid_change_nothing():
    batch = batch_of([[90.0, 7], [110.0, 130.0], [NAN, 90.0], [80.0, 100.0], [95.0, 99]])
    check_task(fitted(("a", "b")), Linear(5, 2), batch)


def test_metrics_have_the_units_of_the_values():
    task, batch = fitted(("a", "b")), batch_of([[90.0, NAN], [110.0, 110], [130.0, 90]])
    found = torch.tensor([[-1.0, 7], [1, 2], [2, -1]])
    task.update(metrics := task.metrics_by_class(), found, batch)
    figures = metrics.compute()
    assert figures["absolute_error"].tolist() == pytest.approx([10 / 3, 5])
    assert figures["rms_error"].tolist() == pytest.approx([math.sqrt(100 / 3), math.sqrt(50)])
    assert figures["r2_score"].tolist() == pytest.approx([1 - 100 / 800, 0.5])
    assert figures["count"].tolist() == [3, 2]
    assert figures["mae"].item() == pytest.approx((10 / 3 + 5) / 2)


def test_predictions_are_told_by_name():
    told = fitted(("a", "b")).predictions(torch.tensor([[1.0, -1]]), batch_of([[90.0, 8]]))
    assert {name: column.tolist() for name, column in told.items()} == {
        "a": [90], "prediction_a": [110], "b": [8], "prediction_b": [90]
    }  # fmt: skip


def test_what_cannot_be_learned_is_said():
    with pytest.raises(ValueError, match="names no values; choose dataset/annotations=values_csv"):
        ImageRegression(num_classes=0)
    task = ImageRegression(num_classes=1, class_names=("age",))
    with pytest.raises(ValueError, match="no record of the training part has a value 'age'"):
        task.fit(index_of([NAN] * 4))
    with pytest.raises(ValueError, match="not all of the data has the value 'age'"):
        task.fit(Table(["a"], {}, None))
    with pytest.raises(ValueError, match=r"the model gave \[3, 1\], expected numbers \[B, 2\]"):
        fitted(("a", "b")).losses(torch.zeros(3, 1), batch_of([[1.0, 2]] * 3))
    with pytest.raises(ValueError, match=r"expected 'values' \[B, 1\] in the batch, got only x"):
        task.losses(torch.zeros(3, 1), {"x": 1})
