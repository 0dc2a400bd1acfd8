"""The segmentation task: what its loss is a mean of, what is ignored, what is refused."""

from __future__ import annotations

import pytest
import torch

from penstock.pipeline.learning.losses import total_loss
from penstock.pipeline.models.reference import segmenter
from penstock.pipeline.tasks.segmentation import Segmentation
from tests.contracts.task import check_task, rows_of


def batch_of(n: int = 4) -> dict:
    torch.manual_seed(n)
    return {
        "image": torch.randn(n, 3, 21, 37),
        "mask": torch.randint(0, 3, (n, 21, 37), dtype=torch.uint8),
        "valid": torch.ones(n, dtype=torch.bool),
        "key": [f"k{i}" for i in range(n)],
    }


@pytest.fixture
def model():
    torch.manual_seed(0)
    return segmenter(num_classes=3, width=8).eval()


def test_every_pixel_of_any_size_gets_logits(model):
    for height, width in ((21, 37), (16, 16), (1, 1), (33, 64)):
        image = torch.randn(2, 3, height, width)
        assert model({"image": image}).shape == (2, 3, height, width)


def test_a_loss_is_the_mean_over_its_rows_however_they_are_batched(model):
    task, batch = Segmentation(num_classes=3, ignore=[2]), batch_of()
    batch["mask"][1] = 2  # a row that is ignored whole
    with torch.no_grad():
        alone = torch.stack(
            [total_loss(task, model(rows_of(batch, [i])), rows_of(batch, [i])) for i in range(4)]
        )
        assert alone[1] == 0 and (alone[[0, 2, 3]] > 0).all()
        assert torch.allclose(total_loss(task, model(batch), batch), alone.mean(), rtol=1e-4)
        batch["valid"] = torch.tensor([True, False, False, True])
        assert torch.allclose(
            total_loss(task, model(batch), batch), alone[[0, 3]].mean(), rtol=1e-4
        )


def test_rows_that_are_not_valid_change_nothing(model):
    check_task(Segmentation(num_classes=3), model, batch_of())


def test_ignored_pixels_change_neither_loss_nor_figures(model):
    task, batch = Segmentation(num_classes=3, ignore=[2, 255]), batch_of()
    logits = model(batch).detach()
    hidden = batch["mask"] == 2
    other = torch.where(hidden[:, None], torch.randn_like(logits), logits)
    marked = {**batch, "mask": batch["mask"].masked_fill(hidden, 255)}
    assert torch.allclose(
        task.losses(logits, batch)["cross_entropy"], task.losses(other, marked)["cross_entropy"]
    )
    figures = []
    for outputs, given in ((logits, batch), (logits, marked)):
        metrics = task.metrics()
        task.update(metrics, outputs, given)
        figures.append(metrics.compute())
    assert figures[0] == figures[1]


def test_metrics_leave_invalid_rows_out(model):
    task, batch = Segmentation(num_classes=3), batch_of()
    outputs = torch.nn.functional.one_hot(batch["mask"].long(), 3).permute(0, 3, 1, 2).float()
    outputs[1] = -outputs[1]
    batch["valid"] = torch.tensor([True, False, True, True])
    metrics = task.metrics()
    task.update(metrics, outputs, batch)
    assert metrics.compute()["miou"] == metrics.compute()["pixel_accuracy"] == 1


def test_clear_lines(model):
    with pytest.raises(ValueError, match="how many classes the masks have is not known"):
        Segmentation(num_classes=0)
    with pytest.raises(ValueError, match="how many classes the masks have is not known"):
        segmenter(num_classes=0)
    batch = batch_of()
    batch["mask"][2, 7, 9] = 255
    said = r"mask of 'k2' has the value 255 at 9, 7, expected 0 to 2; .*mask_colors=\[0,255\]"
    with pytest.raises(ValueError, match=said):
        Segmentation(num_classes=3).losses(model(batch), batch)
    del batch["mask"]
    with pytest.raises(ValueError, match="the batch has no 'mask', only image, key, valid"):
        Segmentation(num_classes=3).losses(torch.zeros(4, 3, 21, 37), batch)
