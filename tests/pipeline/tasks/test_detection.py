"""The detection task: what its losses are means of, and from predictions to figures."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from penstock.datasets.demo.shapes import draw_scene
from penstock.pipeline.learning.boxes import assigned
from penstock.pipeline.learning.losses import total_loss
from penstock.pipeline.models.reference import box_detector
from penstock.pipeline.tasks.detection import Detection, true_boxes
from tests.contracts.task import check_task, rows_of

CLASSES = 3


def batch_of(counts: list[int], valid: list[bool] | None = None, size: int = 64) -> dict:
    rng = np.random.default_rng(sum(counts))
    boxes, labels = [], []
    for count in counts:
        corners = rng.uniform(0, size - 4, (count, 2, 2))
        one = np.concatenate([corners.min(1), corners.max(1) + 3], 1)
        boxes.append(torch.tensor(one, dtype=torch.float32).reshape(-1, 4))
        labels.append(torch.tensor(rng.integers(0, CLASSES, count), dtype=torch.int64))
    n = len(counts)
    return {
        "image": torch.tensor(rng.normal(size=(n, 3, size, size)), dtype=torch.float32),
        "boxes": boxes,
        "box_labels": labels,
        "position": torch.arange(n) + 7,
        "valid": torch.tensor(valid or [True] * n),
        "key": [f"k{i}" for i in range(n)],
    }


@pytest.fixture
def model():
    torch.manual_seed(0)
    return box_detector(num_classes=CLASSES, width=8).eval()


def losses_of(model, batch) -> torch.Tensor:
    losses = Detection(num_classes=CLASSES).losses(model(batch), batch)
    return torch.stack([losses["classes"], losses["overlap"]])


def test_a_loss_is_the_mean_over_its_rows_however_they_are_batched(model):
    batch = batch_of([3, 0, 1, 12])
    with torch.no_grad():
        alone = torch.stack([losses_of(model, rows_of(batch, [i])) for i in range(4)])
        assert torch.allclose(losses_of(model, batch), alone.mean(0), rtol=1e-4)
        masked = {**batch, "valid": torch.tensor([True, False, True, False])}
        assert torch.allclose(losses_of(model, masked), alone[[0, 2]].mean(0), rtol=1e-4)


def test_rows_that_are_not_valid_change_nothing(model):
    check_task(Detection(num_classes=CLASSES), model, batch_of([3, 0, 1, 12]))


def test_images_without_boxes_train(model):
    batch = batch_of([0, 0])
    loss = total_loss(Detection(num_classes=CLASSES), model(batch), batch)
    loss.backward()
    assert loss.item() > 0 and torch.isfinite(loss)


def test_padded_boxes_are_the_same_as_lists(model):
    batch = batch_of([3, 0, 2])
    padded = dict(batch)
    for name in ("boxes", "box_labels"):
        rows = batch[name]
        full = torch.full((3, 5, *rows[0].shape[1:]), 77, dtype=rows[0].dtype)
        mask = torch.zeros(3, 5, dtype=torch.bool)
        for i, row in enumerate(rows):
            full[i, : len(row)], mask[i, : len(row)] = row, True
        padded |= {name: full, f"{name}_mask": mask}
    with torch.no_grad():
        assert (losses_of(model, batch) == losses_of(model, padded)).all()


def test_perfect_predictions_on_the_demo_scenes():
    """Dense predictions made of the truth itself come out as the truth."""
    task = Detection(num_classes=6)
    metrics = task.metrics()
    for number in range(6):
        scene = draw_scene(0, number)
        boxes = torch.tensor(scene.boxes, dtype=torch.float32)
        labels = torch.tensor(scene.box_labels)
        height, width = scene.mask.shape
        points = torch.stack(
            torch.meshgrid(torch.arange(width), torch.arange(height), indexing="xy"), -1
        ).reshape(-1, 2) + 0.5  # fmt: skip
        owner = assigned(points, boxes, radius=task.radius)
        logits = torch.full((1, len(points), 6), -9.0)
        places = (owner >= 0).nonzero()[:, 0]
        logits[0, places, labels[owner[places]]] = 9.0
        outputs = {
            "logits": logits,
            "boxes": boxes[owner.clamp(min=0)][None],
            "points": points,
            "stride": torch.tensor(1.0),
        }
        batch = {
            "boxes": [boxes],
            "box_labels": [labels],
            "valid": torch.tensor([True]),
            "position": torch.tensor([number]),
            "key": [str(number)],
        }
        assert all(loss < 0.01 for loss in task.losses(outputs, batch).values())
        task.update(metrics, outputs, batch)
    found = metrics.compute()
    assert found["map"] == pytest.approx(1)


def test_a_model_that_does_it_all_itself():
    task = Detection(num_classes=CLASSES)
    batch = batch_of([2, 1])
    outputs = {
        "loss_cls": torch.tensor(2.0),
        "loss_bbox": torch.tensor(0.5),
        "detections": [
            {"boxes": b, "scores": torch.ones(len(b)), "labels": n}
            for b, n in zip(batch["boxes"], batch["box_labels"], strict=True)
        ],
    }
    assert total_loss(task, outputs, batch) == 2.5
    metrics = task.metrics()
    task.update(metrics, outputs, {**batch, "valid": torch.tensor([False, True])})
    assert metrics.compute()["map"] == pytest.approx(1)


def test_clear_lines():
    with pytest.raises(ValueError, match="the data has no boxes"):
        Detection(num_classes=0)
    with pytest.raises(ValueError, match="the batch has no 'boxes', only image"):
        true_boxes({"image": torch.zeros(1)}, CLASSES)
    batch = batch_of([2])
    batch["box_labels"][0][1] = 9
    with pytest.raises(ValueError, match="'k0' has a box of class 9, expected 0 to 2"):
        true_boxes(batch, CLASSES)
    with pytest.raises(ValueError, match="the model gave Tensor; expected logits"):
        Detection(num_classes=CLASSES).losses(torch.zeros(2), batch_of([1]))
    with pytest.raises(ValueError, match="no classes of boxes"):
        box_detector(num_classes=None)
