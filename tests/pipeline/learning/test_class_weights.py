"""The loss of each class weighed: as given, or against how often it occurs."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.nn import functional

from penstock import compose
from penstock.pipeline.commands import main
from penstock.pipeline.learning.class_weights import ClassWeights
from penstock.pipeline.tasks.classification import Classification
from penstock.pipeline.tasks.detection import Detection
from penstock.pipeline.tasks.segmentation import Segmentation
from penstock.pipeline.training.job import train

NAMES = ("cat", "dog", "owl")


class Counted:
    """An index of six cats and three dogs, and one of nobody knows what."""

    columns = ("label",)

    def column(self, name):
        return np.array([0] * 6 + [1] * 3 + [-1])


def weights(given, index=None):
    made = ClassWeights(given, num_classes=3, class_names=NAMES)
    made.learn(made.fit(index, "label"))
    found = made.like(torch.zeros(1))
    return None if found is None else found.tolist()


def test_weights_are_by_name_by_id_in_order_or_balanced():
    assert weights(None) is None
    assert weights({"owl": 3}) == weights({2: 3}) == weights([1, 1, 3]) == [1, 1, 3]
    found = weights("balanced", Counted())
    assert found[:2] == pytest.approx([0.75, 1.5])
    assert (6 * found[0] + 3 * found[1]) / 9 == pytest.approx(1), "the mean over the records"


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"owll": 3}, "no class 'owll', the classes are cat, dog, owl; type task.class_weights.o"),
        ([1, 2], r"has 2 weights, and the data 3 classes \(cat, dog, owl\)"),
        ("balanced", r"index does not tell the class of a record \(label\); give weights by class"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_said(given, said):
    with pytest.raises(ValueError, match=said):
        weights(given)


def test_a_sample_weighs_what_its_class_does():
    logits, labels = torch.randn(5, 3), torch.tensor([0, 1, 2, 2, 0])
    batch = {"label": labels, "valid": torch.tensor([True] * 4 + [False]), "key": [""] * 5}
    task = Classification(num_classes=3, class_names=NAMES, class_weights={"owl": 2.0})
    by_row = functional.cross_entropy(logits, labels, reduction="none")
    expected = (by_row * torch.tensor([1.0, 1, 2, 2, 0])).sum() / 4
    torch.testing.assert_close(task.losses(logits, batch)["cross_entropy"], expected)


def test_a_pixel_weighs_what_its_class_does_and_its_target_may_be_smooth():
    logits, mask = torch.randn(2, 3, 4, 4), torch.randint(3, (2, 4, 4))
    mask[0, 0] = 2
    batch = {"mask": mask, "key": ["", ""]}
    known = {"num_classes": 3, "class_names": NAMES, "ignore": [2], "label_smoothing": 0.2}
    task = Segmentation(**known, class_weights=[0.5, 2, 1])
    pixels = functional.cross_entropy(
        logits, mask.masked_fill(mask == 2, -100), torch.tensor([0.5, 2, 1]), reduction="none",
        label_smoothing=0.2,
    )  # fmt: skip
    expected = (pixels.sum((1, 2)) / (mask != 2).sum((1, 2))).mean()
    torch.testing.assert_close(task.losses(logits, batch)["cross_entropy"], expected)


def test_a_class_of_boxes_weighs_its_scores():
    boxes = torch.rand(1, 4, 4) + torch.tensor([0, 0, 1, 1])
    outputs = {"logits": torch.randn(1, 4, 3), "boxes": boxes,
               "points": torch.rand(4, 2), "stride": torch.tensor(1.0)}  # fmt: skip
    batch = {"boxes": [torch.tensor([[0.0, 0, 1, 1]])], "box_labels": [torch.tensor([1])]}

    def loss(given):
        task = Detection(num_classes=3, class_names=NAMES, class_weights=given)
        return task.losses(outputs, batch)["classes"]

    parts = [loss([*(float(n == number) for n in range(3))]) for number in range(3)]
    torch.testing.assert_close(sum(parts), loss(None))


def test_balanced_classes_are_counted_in_training_and_kept_for_evaluation(tmp_path, data_dir):
    small = ["model.width=8", "loader=inline", "trainer.max_epochs=1",
             "trainer.limit_train_batches=1", "trainer.limit_val_batches=1"]  # fmt: skip
    balanced = ["task.class_weights=balanced", "task.label_smoothing=0.1"]
    config = compose([*small, *balanced, f"data_dir={data_dir}", f"outputs={tmp_path}"])
    run = Path(train(config)["run_dir"])
    assert sum(json.loads((run / "figures.json").read_text())[""]["class_counts"]) == 3000
    typed = [f"checkpoint={run}", f"output={tmp_path / 'e.json'}", "split=val"]
    assert main(["evaluate", *typed]) == 0
    assert main(["predict", *typed[:1], f"output={tmp_path / 'p.csv'}"]) == 0
