"""Losses, and the rows that are measured, do not wait for the device."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from penstock.pipeline.learning.outputs import valid_rows
from penstock.pipeline.tasks.classification import Classification
from penstock.pipeline.tasks.detection import Detection
from penstock.pipeline.tasks.multilabel import MultiLabel
from penstock.pipeline.tasks.segmentation import Segmentation
from tests.waits import on_meta, waits

VALID = torch.tensor([True, True, True, False])


def classes() -> tuple[Any, Any, Any]:
    return Classification(num_classes=5), torch.randn(4, 5), {"label": torch.arange(4)}


def labels() -> tuple[Any, Any, Any]:
    return MultiLabel(num_classes=5), torch.randn(4, 5), {"labels": torch.ones(4, 5)}


def masks() -> tuple[Any, Any, Any]:
    batch = {"mask": torch.randint(0, 5, (4, 8, 8))}
    return Segmentation(num_classes=5, ignore=[0]), torch.randn(4, 5, 8, 8), batch


def boxes() -> tuple[Any, Any, Any]:
    corners = torch.rand(4, 60, 2) * 32
    outputs = {
        "logits": torch.randn(4, 60, 5),
        "boxes": torch.cat([corners, corners + 8], -1),
        "points": torch.rand(60, 2) * 32,
        "stride": torch.tensor(8.0),
    }
    some = [torch.tensor([[4.0, 4, 20, 20], [9, 9, 30, 20]])] * 3 + [torch.empty(0, 4)]
    found = [torch.tensor([1, 3])] * 3 + [torch.empty(0, dtype=torch.int64)]
    return Detection(num_classes=5), outputs, {"boxes": some, "box_labels": found}


@pytest.mark.parametrize("make", [classes, labels, masks, boxes])
def test_losses_do_not_wait(make: Callable[[], tuple[Any, Any, Any]]):
    task, outputs, batch = make()
    outputs, batch = on_meta(outputs), on_meta({**batch, "valid": VALID})
    task.losses(outputs, batch)
    with waits() as seen:
        task.losses(outputs, batch)
    assert not seen


@pytest.mark.parametrize("count", [3, 4])
def test_rows_whose_number_is_known_are_taken_without_a_wait(count):
    value = torch.arange(8).reshape(4, 2)
    batch = {"valid": VALID if count == 3 else torch.ones(4, dtype=torch.bool), "num_valid": count}
    [rows] = valid_rows(batch, value)
    assert torch.equal(rows, value[:count])
    scattered = {"valid": torch.tensor([True, False, True, False]), "num_valid": 2}
    assert torch.equal(valid_rows(scattered, value)[0], value[::2])
    batch, value = {**batch, "valid": on_meta(batch["valid"])}, on_meta(value)
    with waits() as seen:
        valid_rows(batch, value)
    assert not seen
