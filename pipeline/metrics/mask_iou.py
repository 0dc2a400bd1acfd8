"""Intersection over union of masks, from one confusion matrix."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torchmetrics import Metric
from torchmetrics.classification import MulticlassConfusionMatrix


class MaskIou(Metric):
    """Mean intersection over union and pixel accuracy, over all pixels of all images.

    Args:
        num_classes: Number of classes.
        ignore: Classes that have no pixels that count, and are left out of the mean.
        ignored_id: What stands in the truth where a pixel does not count.
        class_names: With them, an ``iou_<name>`` for each class that counts.
    """

    full_state_update = False
    higher_is_better = True

    def __init__(
        self,
        num_classes: int,
        *,
        ignore: Sequence[int] = (),
        ignored_id: int = -100,
        class_names: Sequence[str] | None = None,
    ) -> None:
        super().__init__()
        self.ignore = tuple(ignore)
        self.class_names = class_names
        self.confusion = MulticlassConfusionMatrix(
            num_classes, ignore_index=ignored_id, validate_args=False
        )

    def update(self, predicted: torch.Tensor, truth: torch.Tensor) -> None:
        """Add images: class ids, int64 [B, H, W] each."""
        self.confusion.update(predicted, truth)

    def compute(self) -> dict[str, torch.Tensor]:
        """``miou`` over the classes that occur in truth or prediction, ``pixel_accuracy``, ..."""
        matrix = self.confusion.compute().double()
        hits = matrix.diagonal()
        union = matrix.sum(0) + matrix.sum(1) - hits
        counts = union > 0
        counts[[number for number in self.ignore if number < len(counts)]] = False
        iou = hits / union.clamp(min=1)
        figures = {
            "miou": iou[counts].mean() if counts.any() else iou.new_zeros(()),
            "pixel_accuracy": hits.sum() / matrix.sum().clamp(min=1),
        }
        for number, name in enumerate(self.class_names or ()):
            if number not in self.ignore:
                figures[f"iou_{name}"] = iou[number]
        return figures

    def reset(self) -> None:
        """Forget everything."""
        super().reset()
        self.confusion.reset()
