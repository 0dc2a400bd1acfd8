"""Count what boxes are taken for: a confusion matrix with a row and a column for the background."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torchmetrics import Metric

from penstock.pipeline.learning.boxes import covered, overlaps

_SCORE = 0.25  # of all that a detector finds, what one would take for found
_IOU = 0.5


class BoxConfusion(Metric):
    """Confusion matrix of boxes, int64 [C + 1, C + 1]; the last row and column are the background.

    Found boxes with a score of 0.25 or more and true ones are matched one to one, whatever their
    classes, the largest intersection over union first, down to 0.5. A true box without a match is
    taken for background, a found one is background taken for its class, unless half of it lies
    in a box that need not be found.

    Args:
        num_classes: Number of classes.
    """

    full_state_update = False
    counts: torch.Tensor

    def __init__(self, num_classes: int) -> None:
        super().__init__()
        self.num_classes = num_classes
        zeros = torch.zeros(num_classes + 1, num_classes + 1, dtype=torch.int64)
        self.add_state("counts", default=zeros, dist_reduce_fx="sum")

    def update(
        self,
        images: torch.Tensor,
        found: Sequence[dict[str, torch.Tensor]],
        truth: Sequence[dict[str, torch.Tensor]],
    ) -> None:
        """Add images; see `metrics.BoxMap.update`."""
        for said, there in zip(found, truth, strict=True):
            pairs = torch.from_numpy(self._pairs(said, there)).to(self.counts.device)
            cells = pairs[:, 0] * (self.num_classes + 1) + pairs[:, 1]
            self.counts += cells.bincount(minlength=self.counts.numel()).view_as(self.counts)

    def compute(self) -> torch.Tensor:
        """The matrix: rows are the true classes, columns the predicted ones."""
        return self.counts

    def _pairs(self, found: dict[str, Any], truth: dict[str, Any]) -> NDArray[np.int64]:
        """The true and the predicted class of everything in an image, int64 [n, 2]."""
        crowd = truth.get("crowd", torch.zeros_like(truth["labels"])).bool()
        told = (found["scores"] >= _SCORE) & (found["labels"] < self.num_classes)
        boxes, there = found["boxes"][told].float(), truth["boxes"].float()
        labels = found["labels"][told].cpu().numpy()
        true_labels = truth["labels"][~crowd].cpu().numpy()
        iou = overlaps(boxes, there[~crowd]).cpu().numpy()
        of_truth = np.full(len(true_labels), self.num_classes)  # what each is taken for
        left = ~(covered(boxes, there[crowd]) >= _IOU).any(1).cpu().numpy()
        rows, columns = np.nonzero(iou >= _IOU)
        matched = np.zeros(len(labels), bool)
        for at in np.argsort(-iou[rows, columns], kind="stable"):
            row, column = rows[at], columns[at]
            if not matched[row] and of_truth[column] == self.num_classes:
                matched[row], of_truth[column] = True, labels[row]
        false = labels[left & ~matched]
        missing = np.full(len(false), self.num_classes)
        return np.stack([np.append(true_labels, missing), np.append(of_truth, false)], 1)
