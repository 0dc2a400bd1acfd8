"""Models that return their losses themselves, and none in evaluation."""

from __future__ import annotations

import csv

import pytest
import torch
from torch import nn

from penstock.core.registry import register
from penstock.pipeline.config.compose import compose
from penstock.pipeline.training.job import train


class OwnDetector(nn.Module):
    """Losses in training; in evaluation it finds the middle of every image, or nothing."""

    def __init__(self, num_classes: int) -> None:
        super().__init__()
        self.scores = nn.Parameter(torch.zeros(num_classes))

    def forward(self, batch: dict) -> dict:
        if self.training:
            counts = torch.stack([
                labels.bincount(minlength=len(self.scores)).float().mean()
                for labels in batch["box_labels"]
            ])  # fmt: skip
            valid = batch["valid"] / batch["valid"].sum().clamp(min=1)
            loss = (self.scores.square().mean() + 1) * (counts * valid).sum()
            return {"loss_cls": loss, "loss_bbox": loss * 0.5, "loss_unused": None}
        height, width = batch["image"].shape[2:]
        middle = torch.tensor([[width / 4, height / 4, width * 0.75, height * 0.75]])
        one = {"boxes": middle, "scores": torch.ones(1), "labels": torch.zeros(1).long()}
        none = {name: value[:0] for name, value in one.items()}
        even = (batch["position"] % 2 == 0).tolist()
        return {"detections": [one if row else none for row in even]}


@register("model", "test_own_detector")
def own_detector(*, num_classes: int | None) -> OwnDetector:
    """A detector with losses of its own."""
    return OwnDetector(num_classes or 1)


def config(data_dir, tmp_path, *more: str):
    return compose([
        "task=detection", "dataset/annotations=boxes_csv", "model=test_own_detector",
        f"data_dir={data_dir}", f"outputs={tmp_path}", "augment.train=null", "loader=inline",
        "loader.batch_size=8", "trainer.max_epochs=2", "trainer.limit_train_batches=2",
        "trainer.limit_val_batches=2", "trainer.progress=off", "trainer.num_threads=1",
        "augment.train={resize: {_target_: albumentations.Resize, height: 48, width: 48}}", *more,
    ])  # fmt: skip


def test_without_losses_in_evaluation_there_are_metrics_alone(data_dir, tmp_path):
    results = train(config(data_dir, tmp_path, "logger=csv"))
    assert results["step"] == 4 and 0 <= results["val/map"] <= 1
    assert not [name for name in results if name.startswith("val/") and "loss" in name]
    (run,) = [path.parent for path in tmp_path.rglob("metrics.csv")]
    with open(run / "metrics.csv", newline="") as file:
        rows = list(csv.DictReader(file))
    assert "val/map" in rows[0] and "val/loss" not in rows[0]
    trained = [float(row["train/loss"]) for row in rows if row["train/loss"]]
    assert trained and all(0 < loss < 10 for loss in trained)
    assert not any("nan" in value for row in rows for value in row.values())
    assert list(run.glob("checkpoints/*best*")), "the best by mean average precision"


@pytest.mark.parametrize(
    ("watched", "said"), [("loss", "is 'loss', and"), ("null", "is not set, there is no loss, and")]
)
def test_a_figure_that_is_not_there_cannot_be_watched(data_dir, tmp_path, watched, said):
    with pytest.raises(ValueError, match=rf"trainer\.monitor {said} the task gives map, .*; type"):
        train(config(data_dir, tmp_path, f"trainer.monitor={watched}", "trainer.max_epochs=1"))
