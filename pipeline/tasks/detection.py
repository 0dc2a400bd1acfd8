"""Detect boxes with classes: a focal loss and a loss of overlap, mean average precision."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
from annotated_types import Ge, Gt, Le

from penstock.core.contracts import Index
from penstock.core.registry import register
from penstock.core.sample import Batch
from penstock.pipeline.learning.class_weights import ClassWeights, Weights
from penstock.pipeline.learning.outputs import mean_over_valid, named, output_of
from penstock.pipeline.learning.places import boxes_in_files, file_places, file_sizes

if TYPE_CHECKING:
    import torch

_MOST_BEFORE_SUPPRESSION = 1000
_MOST = 100  # boxes of an image, as COCO evaluates them


@register("task", "detection")
class Detection:
    """Boxes with classes: a focal loss and a loss of overlap, mean average precision.

    A model gives predictions for every place of a grid (``logits``, ``boxes``, ``points``,
    ``stride``: see `pipeline.learning.networks.BoxHead`), or does it all itself, as detection code
    bases do: losses by names that begin with ``loss``, and ``detections``, for each image
    ``boxes`` [N, 4], ``scores`` [N] and ``labels`` [N]. Average precision comes with the extra
    `detection`.

    Args:
        num_classes: Classes of boxes.
        class_names: Their names.
        box_weight: What the loss of overlap weighs beside that of the classes.
        radius: How near to a box's centre a place must be to predict it, in places.
        min_score: Boxes with lower scores are not given.
        max_overlap: Of boxes of one class that overlap by more, the best is given.
        class_metrics: Also report the average precision of each class.
        class_weights: What the loss of a class's scores is multiplied by: a weight by name (1 where
            it is not said), or all in their order.
    """

    field = "box_labels"

    def __init__(
        self,
        *,
        num_classes: int | None,
        class_names: tuple[str, ...] | None = None,
        box_weight: Annotated[float, Ge(0)] = 2.0,
        radius: Annotated[float, Gt(0)] = 1.5,
        min_score: Annotated[float, Ge(0), Le(1)] = 0.05,
        max_overlap: Annotated[float, Ge(0), Le(1)] = 0.6,
        class_metrics: bool = False,
        class_weights: Weights = None,
    ) -> None:
        if not num_classes:
            raise ValueError(
                "task detection: the data has no boxes; choose dataset/annotations=voc, coco, "
                "yolo or boxes_csv, or another task"
            )
        self.num_classes = num_classes
        self.weights = ClassWeights(class_weights, num_classes=num_classes, class_names=class_names)
        self.class_names = class_names
        self.box_weight = box_weight
        self.radius = radius
        self.min_score = min_score
        self.max_overlap = max_overlap
        self.class_metrics = class_metrics

    def fit(self, index: Index | None) -> dict[str, Any]:
        """Count the records of each class, if their weights are to be balanced."""
        return self.weights.fit(index, self.field)

    def learn(self, figures: Mapping[str, Any]) -> None:
        """Take the figures that `fit` gave."""
        self.weights.learn(figures)

    def losses(self, outputs: Any, batch: Batch) -> dict[str, torch.Tensor]:
        """``classes`` and ``overlap``, means over the valid rows; 0, with a gradient, if none is.

        The first is the quality focal loss of Li et al., "Generalized Focal Loss", NeurIPS 2020:
        the score that is aimed at is the overlap with the true box. The second is 1 - GIoU.

        A model that gives ``detections`` alone, as in evaluation, has none here.

        Args:
            outputs: What the model gave.
            batch: ``boxes``, a list of B float tensors [N, 4], xyxy in pixels, or padded
                [B, N, 4] with ``boxes_mask``; ``box_labels`` likewise; ``valid`` bool [B].
        """
        import torch

        if isinstance(outputs, Mapping) and "detections" in outputs and "logits" not in outputs:
            return {}  # the model's losses are its own, and it gives none in evaluation
        logits = _dense(outputs)
        rows = [
            self._row_losses(logits[row], outputs, row, boxes["boxes"], boxes["labels"])
            for row, boxes in enumerate(true_boxes(batch, self.num_classes))
        ]
        by_row = torch.stack([torch.stack(losses) for losses in rows])
        means = mean_over_valid(by_row, batch.get("valid"))
        return {"classes": means[0], "overlap": means[1] * self.box_weight}

    def _row_losses(
        self,
        logits: torch.Tensor,
        outputs: Mapping[str, torch.Tensor],
        row: int,
        boxes: torch.Tensor,
        labels: torch.Tensor,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        import torch
        from torch.nn import functional

        from penstock.pipeline.learning.boxes import assigned, paired_overlaps

        points = outputs["points"]
        # Over all places, and not those of a box alone: their number is the device's to know.
        owner = assigned(points, boxes, radius=self.radius * outputs["stride"])
        taken, target = owner >= 0, torch.zeros_like(logits)
        distance = outputs["boxes"][row][:0]  # without boxes a sum of 0, with a gradient
        if len(boxes):
            own = owner.clamp(min=0)
            iou, giou = paired_overlaps(outputs["boxes"][row], boxes[own])
            is_class = labels[own][:, None] == torch.arange(logits.shape[1], device=logits.device)
            aims = iou.detach().clamp(0, 1).to(target.dtype)
            target = aims[:, None].where(is_class & taken[:, None], target)
            distance = (1 - giou).where(taken, 0)
        entropy = functional.binary_cross_entropy_with_logits(logits, target, reduction="none")
        focus = (target - logits.sigmoid()).abs().square().detach()
        count = taken.sum().clamp(min=1)
        if (weights := self.weights.like(logits)) is not None:
            focus = focus * weights
        return (entropy * focus).sum() / count, distance.sum() / count

    def metrics(self) -> Any:
        """``map`` (over IoU 0.50 to 0.95), ``map_50``, ``map_75``, by size, and ``mar_100``."""
        return self._metrics(by_class=False)

    def metrics_by_class(self) -> Any:
        """The same, ``average_precision`` of each class, and ``confusion`` of boxes."""
        return self._metrics(by_class=True)

    def _metrics(self, *, by_class: bool) -> Any:
        from penstock.pipeline.learning.confusion import BoxConfusion
        from penstock.pipeline.learning.metrics import BoxMap, collected

        names = self.class_names if self.class_metrics else None
        boxes = BoxMap(self.num_classes, class_names=names, by_class=by_class)
        confusion = {"confusion": BoxConfusion(self.num_classes)} if by_class else {}
        return collected(boxes=boxes, **confusion)

    def update(self, metrics: Any, outputs: Any, batch: Batch) -> None:
        """Add the valid rows of a batch to `metrics`."""
        valid = batch.get("valid")
        rows = range(len(batch["position"])) if valid is None else valid.nonzero()[:, 0].tolist()
        found = self.detections(outputs)
        truth = true_boxes(batch, self.num_classes)
        if rows:
            metrics.update(
                batch["position"][list(rows)],
                [found[row] for row in rows],
                [truth[row] for row in rows],
            )

    def detections(self, outputs: Any) -> list[dict[str, torch.Tensor]]:
        """The boxes that are found in each image: ``boxes`` [N, 4], ``scores``, ``labels`` [N].

        Of those of a grid also ``places``, where each was predicted.
        """
        if isinstance(outputs, Mapping) and "detections" in outputs:
            return list(outputs["detections"])
        logits = _dense(outputs)
        return [
            self._best(row.detach().sigmoid(), boxes.detach())
            for row, boxes in zip(logits, outputs["boxes"], strict=True)
        ]

    def predictions(self, outputs: Any, batch: Batch) -> dict[str, Any]:
        """Return ``boxes``, ``classes`` and ``scores`` of each image, the best first.

        Boxes are xyxy in pixels of the file, which has ``image_height`` rows and ``image_width``
        columns. They are cut at its edges, and boxes outside of it are left out.
        """
        places = file_places(batch)
        boxes, found = boxes_in_files(self.detections(outputs), places)
        return {
            "boxes": [row.astype(np.float32).tolist() for row in boxes],
            "classes": [named(row["labels"].tolist(), self.class_names) for row in found],
            "scores": [row["scores"].float().tolist() for row in found],
            **file_sizes(places),
        }

    def _best(self, scores: torch.Tensor, boxes: torch.Tensor) -> dict[str, torch.Tensor]:
        from penstock.pipeline.learning.boxes import suppressed

        flat = scores.flatten()
        best, places = flat.topk(min(_MOST_BEFORE_SUPPRESSION, flat.numel()))
        places = places[best >= self.min_score]
        best = best[best >= self.min_score]
        labels, places = places % scores.shape[1], places // scores.shape[1]
        boxes = boxes[places]
        kept = suppressed(boxes, best, labels, iou=self.max_overlap)[:_MOST]
        found = {"boxes": boxes, "scores": best, "labels": labels, "places": places}
        return {name: values[kept] for name, values in found.items()}


def true_boxes(batch: Batch, num_classes: int) -> list[dict[str, torch.Tensor]]:
    """The true boxes of each image, from lists or padded tensors.

    Returns:
        For each row ``boxes`` float [N, 4] and ``labels`` int64 [N]; ``crowd`` int64 [N] where
        the data has it, and ``masks`` [N, H, W].

    Raises:
        ValueError: The batch has no boxes, or a label is no class.
    """
    for name in ("boxes", "box_labels"):
        if name not in batch:
            raise ValueError(
                f"task detection: the batch has no {name!r}, only {', '.join(sorted(batch))}; "
                f"choose dataset/annotations=voc, coco, yolo or boxes_csv, and collate=list or pad"
            )
    fields = {"boxes": "boxes", "box_labels": "labels", "box_crowd": "crowd", "box_masks": "masks"}
    columns = {short: _ragged(batch, name) for name, short in fields.items() if name in batch}
    rows = [
        dict(zip(columns, values, strict=True)) for values in zip(*columns.values(), strict=True)
    ]
    for row, boxes in enumerate(rows):
        labels = boxes["labels"]
        if labels.device.type == "cpu" and len(labels):
            low, high = int(labels.min()), int(labels.max())
            if low < 0 or high >= num_classes:
                raise ValueError(
                    f"task detection: {batch['key'][row]!r} has a box of class "
                    f"{low if low < 0 else high}, expected 0 to {num_classes - 1}; correct the "
                    f"label or the classes"
                )
    return rows


def _ragged(batch: Batch, name: str) -> list[Any]:
    """Rows of their own lengths, of a list or of a padded tensor with its mask."""
    values, mask = batch[name], batch.get(f"{name}_mask")
    if mask is None:
        return list(values)
    return [row[there] for row, there in zip(values, mask, strict=True)]


def _dense(outputs: Any) -> torch.Tensor:
    expected = (
        "logits, boxes, points and stride, or losses and detections; choose model=box_detector"
    )
    needed = ("boxes", "points", "stride", "logits")
    return [output_of(outputs, name, task="detection", expected=expected) for name in needed][-1]
