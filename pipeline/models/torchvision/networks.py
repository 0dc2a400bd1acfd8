"""Feed detectors and segmenters of torchvision with batches, and give what tasks take."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from penstock.core.sample import Batch
from penstock.pipeline.learning.networks import image_of, refusing
from penstock.pipeline.tasks.detection import true_boxes


class Detector(nn.Module):
    """A detector of torchvision: its own losses in training, detections in evaluation.

    Its classes are counted from 1; 0 is the background. Images are float [C, H, W], 0..1, of any
    sizes: the detector normalises and resizes them by itself.

    Args:
        detector: Takes a list of images and, in training, one of ``boxes`` and ``labels``.
        num_classes: Classes of the data.
        remedy: What to do where it cannot take its input.
    """

    def __init__(self, detector: nn.Module, num_classes: int, *, remedy: str) -> None:
        super().__init__()
        self.detector = detector
        self._num_classes = num_classes
        self._remedy = remedy

    def forward(self, batch: Batch) -> dict[str, Any]:
        """Losses by names that begin with ``loss``, means over the valid rows; or ``detections``.

        Args:
            batch: ``image`` float [B, 3, H, W], or a list of [3, H, W]; in training ``boxes`` and
                ``box_labels`` as `pipeline.tasks.detection` takes them, and ``valid`` bool [B].
        """
        images = _images_of(batch)
        if not self.training:
            with self._refusing(batch):
                found = self.detector(images)
            return {"detections": [_counted_from_0(row) for row in found]}
        valid = batch.get("valid")
        rows = range(len(images)) if valid is None else valid.nonzero()[:, 0].tolist()
        truth = true_boxes(batch, self._num_classes)
        targets = [_counted_from_1(truth[row]) for row in rows]
        if not targets:  # a rank's part may be padding alone, and takes part with gradients of 0
            parameters = [p.sum() for p in self.parameters() if p.requires_grad]
            return {"loss": torch.stack(parameters).sum() * 0}
        with self._refusing(batch):
            losses = self.detector([images[row] for row in rows], targets)
        return {f"loss_{name.removeprefix('loss_')}": loss for name, loss in losses.items()}

    def _refusing(self, batch: Batch) -> Any:
        what = "model torchvision"
        return refusing(self.detector, "image", batch["image"], what=what, remedy=self._remedy)


def _images_of(batch: Batch) -> list[torch.Tensor]:
    if not isinstance(batch.get("image"), list):
        return list(image_of(batch))
    return [image_of({"image": image[None]})[0] for image in batch["image"]]


def _counted_from_1(truth: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """The true boxes of an image; those without an area, which detectors refuse, are left out."""
    boxes = truth["boxes"].float().reshape(-1, 4)
    there = (boxes[:, 2:] > boxes[:, :2]).all(1)
    return {"boxes": boxes[there], "labels": truth["labels"][there].long() + 1}


def _counted_from_0(found: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    there = found["labels"] > 0  # some score the background too
    return {
        "boxes": found["boxes"][there],
        "scores": found["scores"][there],
        "labels": found["labels"][there] - 1,
    }


class Segmenter(nn.Module):
    """A network that gives scores of pixels as ``out`` of a dict, as those of torchvision do.

    Args:
        segmenter: Takes images, float [B, 3, H, W].
        remedy: What to do where it cannot take its input.
    """

    def __init__(self, segmenter: nn.Module, *, remedy: str) -> None:
        super().__init__()
        self.segmenter = segmenter
        self._remedy = remedy

    def forward(self, batch: Batch) -> torch.Tensor:
        """Logits, float [B, num_classes, H, W].

        Args:
            batch: ``image`` float [B, 3, H, W]; uint8 [B, H, W, 3] is turned into 0..1 first.
        """
        images, what = image_of(batch), "model torchvision"
        with refusing(self.segmenter, "image", images, what=what, remedy=self._remedy):
            logits: torch.Tensor = self.segmenter(images)["out"]
        return logits
