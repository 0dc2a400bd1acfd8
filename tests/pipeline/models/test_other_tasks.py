"""A model that is for another task is one line that says so, not a traceback out of torch."""

from __future__ import annotations

import pytest
import torch

from penstock.core.user_errors import is_explained
from penstock.pipeline.learning.networks import (
    BoxDetector,
    Embedder,
    FedModule,
    Segmenter,
    SmallCnn,
)
from penstock.pipeline.tasks.classification import Classification
from penstock.pipeline.tasks.detection import Detection
from penstock.pipeline.tasks.segmentation import Segmentation

IMAGES = {
    "image": torch.zeros(2, 3, 32, 32),
    "label": torch.zeros(2, dtype=torch.int64),
    "mask": torch.zeros(2, 32, 32, dtype=torch.int64),
    "boxes": [torch.tensor([[1.0, 1.0, 9.0, 9.0]])] * 2,
    "box_labels": [torch.tensor([0])] * 2,
    "valid": torch.ones(2, dtype=torch.bool),
    "key": ["a", "b"],
}
TASKS = {
    "classification": Classification(num_classes=3),
    "segmentation": Segmentation(num_classes=3),
    "detection": Detection(num_classes=3),
}


@pytest.mark.parametrize(
    ("task", "model", "said"),
    [
        ("classification", lambda: BoxDetector(num_classes=3, width=8),
         r"the model gave logits \[2, .*, 3\], expected logits \[B, 3\]"),
        ("classification", lambda: Segmenter(num_classes=3, width=8), r"\[2, 3, 32, 32\]"),
        ("classification", lambda: SmallCnn(num_classes=2, width=8, dropout=0), r"\[2, 2\], exp"),
        ("segmentation", lambda: SmallCnn(num_classes=3, width=8, dropout=0),
         r"expected logits \[B, 3, H, W\]"),
        ("segmentation", lambda: torch.nn.Sequential(Segmenter(num_classes=3, width=8),
                                                     torch.nn.AvgPool2d(4)),
         r"gave logits \[2, 3, 8, 8\], expected \[B, 3, 32, 32\], .*interpolate\(logits"),
        ("detection", lambda: Embedder(num_classes=3, width=8, features=4), "box_detector"),
        ("classification", lambda: FedModule(torch.nn.Linear(5, 3), "image"),
         r"Linear cannot take 'image' \[2, 3, 32, 32\]: mat1 and mat2"),
        ("classification", lambda: FedModule(torch.nn.Conv2d(1, 3, 3), "image"), "1 channels"),
    ],
)  # fmt: skip
def test_the_line_says_what_was_given_and_what_is_expected(task, model, said):
    with pytest.raises(ValueError, match=said) as error:
        TASKS[task].losses(model()(IMAGES), IMAGES)
    assert is_explained(error.value) and "\n" not in str(error.value)


def test_masks_of_another_size_than_the_image_are_not_told():
    task, coarse = TASKS["segmentation"], torch.zeros(2, 3, 8, 8)
    said = r"\[2, 3, 8, 8\], expected \[B, 3, 32, 32\]"
    with pytest.raises(ValueError, match=said):
        task.update(task.metrics(), coarse, IMAGES)
    with pytest.raises(ValueError, match=said):
        task.predictions(coarse, IMAGES)


def test_a_model_of_images_names_what_the_batch_has():
    with pytest.raises(ValueError, match="takes images, and the batch has tokens; take a model"):
        SmallCnn(num_classes=2, width=8, dropout=0)({"tokens": torch.zeros(2, 3)})


def test_the_traceback_of_a_users_own_module_stays():
    class Own(torch.nn.Linear):
        pass

    with pytest.raises(RuntimeError):
        FedModule(Own(5, 3), "image")(IMAGES)
