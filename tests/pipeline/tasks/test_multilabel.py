"""Several labels: the loss, metrics, what is told; labels that are not known."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from penstock.pipeline.learning.outputs import plain_columns
from penstock.pipeline.pictures.fields import Classes, lines_of
from penstock.pipeline.tasks.multilabel import MultiLabel
from penstock.transforms.device.mixing import Mixup
from tests.contracts.task import Linear, check_task

NAN = float("nan")


def batch_of(labels):
    labels = torch.tensor(labels)
    return {
        "labels": labels,
        "valid": torch.ones(len(labels), dtype=torch.bool),
        "x": torch.randn(len(labels), 5),
    }


def test_the_loss_is_of_known_labels():
    logits = torch.tensor([[2.0, -1.0], [0.0, 3.0]])
    batch = batch_of([[1.0, NAN], [NAN, NAN]])
    loss = MultiLabel(num_classes=2).losses(logits, batch)["binary_cross_entropy"]
    assert loss.item() == pytest.approx(torch.nn.functional.softplus(torch.tensor(-2.0)).item() / 2)
    heavy = MultiLabel(num_classes=2, positive_weight=3).losses(logits, batch)
    assert heavy["binary_cross_entropy"].item() == pytest.approx(3 * loss.item())


def test_rows_that_are_not_valid_change_nothing():
    batch = batch_of([[1.0, 0, 1], [0, 1, NAN], [1, 1, 0], [0, 0, 1]])
    check_task(MultiLabel(num_classes=3), Linear(5, 3), batch)


def test_metrics_leave_out_what_is_not_known():
    task = MultiLabel(num_classes=3)
    batch = batch_of([[1.0, 0, 0], [0, 1, 0], [1, NAN, 0], [0, 0, 0]])
    logits = torch.tensor([[3.0, -2, -1], [2, -1, -1], [1, 9, -1], [-1, -3, -1]])
    task.update(metrics := task.metrics_by_class(), logits, batch)
    figures = metrics.compute()
    assert figures["average_precision"].tolist()[:2] == pytest.approx([(1 + 2 / 3) / 2, 1])
    assert figures["average_precision"][2].isnan() and figures["count"].tolist() == [2, 1, 0]
    assert figures["map"].item() == pytest.approx((5 / 6 + 1) / 2)
    assert figures["recall"].tolist()[:2] == [1, 0]
    assert figures["f1_macro"].item() == pytest.approx(0.8 / 2)
    assert figures["f1_micro"].item() == pytest.approx(2 * 2 / (3 + 3))
    task.update(metrics := task.metrics(), logits, batch)
    assert {*metrics.compute()} == {"map", "f1_macro", "f1_micro"}


def test_labels_above_the_threshold_are_told_with_probabilities():
    task = MultiLabel(num_classes=2, class_names=("cat", "dog"), threshold=0.6)
    told = task.predictions(torch.tensor([[0.5, 2.0], [-1, 0.2]]), batch_of([[1.0, 0], [1, 1]]))
    columns = plain_columns(told)
    assert columns["labels"] == [["cat"], ["cat", "dog"]]
    assert columns["predicted"] == [["dog", "cat"], []]
    assert columns["probability_dog"].tolist() == pytest.approx([0.8808, 0.5498], abs=1e-4)
    assert list(plain_columns(told, top=1)) == ["labels", "predicted", "class_1", "probability_1"]


def test_mixed_images_have_mixed_labels():
    batch = batch_of([[1.0, 0], [0, NAN]]) | {
        "image": torch.rand(2, 3, 4, 4), "position": torch.arange(2),
        "epoch": torch.zeros(2, dtype=torch.int64),
    }  # fmt: skip
    mixed = Mixup(alpha=8, seed=1, split="train", step="mixup")(batch)
    share = mixed["label_weight"]
    assert mixed["labels"][:, 0].tolist() == pytest.approx([share[0].item(), 1 - share[1].item()])
    assert mixed["labels"][:, 1].isnan().all() and "label_other" not in mixed


def test_what_cannot_be_learned_is_said():
    with pytest.raises(ValueError, match="names no labels; choose dataset/annotations=labels_csv"):
        MultiLabel(num_classes=0)
    task = MultiLabel(num_classes=2)
    with pytest.raises(ValueError, match=r"expected 'labels' \[B, 2\] in the batch, got only key"):
        task.losses(torch.zeros(1, 2), {"key": ["a"]})
    with pytest.raises(ValueError, match=r"labels are \[1, 3\], expected \[B, 2\]"):
        task.losses(torch.zeros(1, 2), {"labels": torch.zeros(1, 3)})


def test_a_preview_names_labels():
    classes = {"labels": Classes(("ape", "bee", "cow"))}
    for values, text in (
        ([1, 0, 1], "ape, cow"),
        ([0, 0, 0], "none"),
        ([NAN, 1, 0], "ape nan, bee"),
        ([0.25, 0, 0.75], "ape 0.25, bee 0, cow 0.75"),
    ):
        sample = {"labels": np.array(values, np.float32)}
        assert lines_of(sample, classes) == (f"labels: {text}",)
