"""Find objects with their masks: the losses of boxes and one of masks, average precision."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
from annotated_types import Ge, Gt, Le

from penstock.core.registry import register
from penstock.core.sample import Batch
from penstock.pipeline.learning.outputs import (
    mean_over_valid,
    named,
    output_of,
    size_of,
)
from penstock.pipeline.learning.places import (
    FilePlace,
    boxes_in_files,
    file_places,
    file_sizes,
)
from penstock.pipeline.tasks.detection import Detection, true_boxes

if TYPE_CHECKING:
    import torch

_EXPECTED = (
    "boxes with coefficients and prototypes, such as model=instance_net gives; model=multi_net has "
    "no masks of boxes: take task=instances alone, or a model of your own for task=multi"
)


@register("task", "instances")
class Instances:
    """Boxes with a mask each: the losses of `Detection` and one of masks; average precision.

    A model gives what it gives for ``task=detection``, with ``coefficients`` and ``prototypes``
    (see `pipeline.learning.networks.InstanceNet`), or does it all itself: losses by names that
    begin with ``loss``, and ``detections`` that have ``masks`` [N, H, W] too.

    Args:
        num_classes: Classes of boxes.
        class_names: Their names.
        mask_weight: What the loss of masks weighs beside those of the boxes.
        box_weight: What the loss of overlap weighs beside that of the classes.
        radius: How near to a box's centre a place must be to predict it, in places.
        min_score: Boxes with lower scores are not given.
        max_overlap: Of boxes of one class that overlap by more, the best is given.
    """

    field = "box_labels"

    def __init__(
        self,
        *,
        num_classes: int | None,
        class_names: tuple[str, ...] | None = None,
        mask_weight: Annotated[float, Ge(0)] = 1.0,
        box_weight: Annotated[float, Ge(0)] = 2.0,
        radius: Annotated[float, Gt(0)] = 1.5,
        min_score: Annotated[float, Ge(0), Le(1)] = 0.05,
        max_overlap: Annotated[float, Ge(0), Le(1)] = 0.6,
    ) -> None:
        if not num_classes:
            raise ValueError(
                "task instances: the data has no boxes; choose dataset/annotations=coco with "
                "dataset.annotations.masks=true, or another task"
            )
        self.num_classes = num_classes
        self.class_names = class_names
        self.mask_weight = mask_weight
        self.radius = radius
        self._boxes = Detection(
            num_classes=num_classes,
            class_names=class_names,
            box_weight=box_weight,
            radius=radius,
            min_score=min_score,
            max_overlap=max_overlap,
        )

    def losses(self, outputs: Any, batch: Batch) -> dict[str, torch.Tensor]:
        """``classes`` and ``overlap``, see `Detection`, and ``masks``.

        The last is the binary cross-entropy inside of a box, a sum over its pixels by its area.

        Args:
            outputs: What the model gave.
            batch: As for `Detection`, with ``box_masks``, a list of B tensors [N, H, W], or
                padded [B, N, H, W].
        """
        import torch

        losses = self._boxes.losses(outputs, batch)
        if not losses:
            return {}  # the model's losses are its own
        rows = [
            self._mask_loss(outputs, row, truth) for row, truth in enumerate(self._truth(batch))
        ]
        mean = mean_over_valid(torch.stack(rows), batch.get("valid"))
        return {**losses, "masks": mean * self.mask_weight}

    def _mask_loss(
        self, outputs: Mapping[str, torch.Tensor], row: int, truth: Mapping[str, torch.Tensor]
    ) -> torch.Tensor:
        from torch.nn import functional

        from penstock.pipeline.learning.boxes import assigned

        prototypes, coefficients = _shared(outputs, row)
        boxes, masks = truth["boxes"], truth["masks"]
        reach = self.radius * float(outputs["stride"])
        owner = assigned(outputs["points"], boxes, radius=reach)
        places = (owner >= 0).nonzero()[:, 0]
        if not len(places):
            return (prototypes.sum() + coefficients.sum()) * 0
        size = tuple(prototypes.shape[1:])
        target = functional.interpolate(masks[:, None].float(), size=size, mode="area")[:, 0]
        scale = target.shape[-1] / masks.shape[-1], target.shape[-2] / masks.shape[-2]
        inside = _inside(boxes * boxes.new_tensor(scale * 2), size)
        found = (coefficients[places] @ prototypes.flatten(1)).unflatten(1, size)
        entropy = functional.binary_cross_entropy_with_logits(
            found, target[owner[places]], reduction="none"
        )
        kept = inside[owner[places]]
        by_place = (entropy * kept).sum((1, 2)) / kept.sum((1, 2)).clamp(min=1)
        return by_place.mean()

    def metrics(self) -> Any:
        """``map`` of masks (IoU 0.50 to 0.95), ``map_50``, ``map_75``, by size, and ``mar_100``."""
        return self._metrics(by_class=False)

    def metrics_by_class(self) -> Any:
        """The same, ``average_precision`` of each class, and ``confusion``, by the boxes."""
        return self._metrics(by_class=True)

    def _metrics(self, *, by_class: bool) -> Any:
        from penstock.pipeline.learning.confusion import BoxConfusion
        from penstock.pipeline.learning.metrics import BoxMap, collected

        masks = BoxMap(self.num_classes, by_class=by_class, masks=True)
        confusion = {"confusion": BoxConfusion(self.num_classes)} if by_class else {}
        return collected(masks=masks, **confusion)

    def update(self, metrics: Any, outputs: Any, batch: Batch) -> None:
        """Add the valid rows of a batch to `metrics`."""
        valid = batch.get("valid")
        rows = range(len(batch["position"])) if valid is None else valid.nonzero()[:, 0].tolist()
        found, truth = self.detections(outputs, batch), self._truth(batch)
        if rows:
            metrics.update(
                batch["position"][list(rows)],
                [found[row] for row in rows],
                [truth[row] for row in rows],
            )

    def detections(self, outputs: Any, batch: Batch) -> list[dict[str, torch.Tensor]]:
        """The objects that are found in each image, with ``masks`` bool [N, H, W]."""
        from torch.nn import functional

        found = self._boxes.detections(outputs)
        if isinstance(outputs, Mapping) and "detections" in outputs:
            for one in found:
                output_of(one, "masks", task="instances", expected="masks of detections")
            return found
        sizes = [size_of(image) for image in batch["image"]]
        for row, (boxes, size) in enumerate(zip(found, sizes, strict=True)):
            prototypes, coefficients = _shared(outputs, row)
            maps = (coefficients[boxes["places"]] @ prototypes.flatten(1)).detach()
            maps = maps.unflatten(1, tuple(prototypes.shape[1:]))[:, None]
            grown = functional.interpolate(maps, size=size, mode="bilinear", align_corners=False)
            boxes["masks"] = (grown[:, 0] > 0) & _inside(boxes["boxes"], size)
        return found

    def predictions(self, outputs: Any, batch: Batch) -> dict[str, Any]:
        """Return ``boxes``, ``classes``, ``scores`` and ``masks`` of each image, the best first.

        All are in pixels of the file, which has ``image_height`` rows and ``image_width``
        columns. Masks are COCO's run lengths, compressed. Boxes are cut at the edges of the
        file, and objects outside of it are left out.
        """
        places = file_places(batch)
        boxes, found = boxes_in_files(self.detections(outputs, batch), places)
        return {
            "boxes": [row.astype(np.float32).tolist() for row in boxes],
            "classes": [named(row["labels"].tolist(), self.class_names) for row in found],
            "scores": [row["scores"].float().tolist() for row in found],
            "masks": [
                [_counts(mask, place) for mask in row["masks"]]
                for row, place in zip(found, places, strict=True)
            ],
            **file_sizes(places),
        }

    def _truth(self, batch: Batch) -> list[dict[str, torch.Tensor]]:
        if "box_masks" not in batch:
            raise ValueError(
                f"task instances: the batch has no 'box_masks', only {', '.join(sorted(batch))}; "
                f"type dataset/annotations=coco_masks"
            )
        return true_boxes(batch, self.num_classes)


def _counts(mask: torch.Tensor, place: FilePlace) -> str:
    """Encode a mask [h, w] of an image as run lengths of its file's size."""
    import torch

    from penstock.pipeline.learning.metrics import run_lengths

    pixels = place.mask(mask.to("cpu", torch.uint8).numpy(), outside=0)
    [runs] = run_lengths(torch.from_numpy(pixels)[None])
    return str(runs["counts"].decode("ascii"))


def _shared(outputs: Any, row: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Masks that all boxes share, float [P, h, w], and what each place has of them, [N, P]."""
    prototypes, coefficients = (
        output_of(outputs, name, task="instances", expected=_EXPECTED)[row]
        for name in ("prototypes", "coefficients")
    )
    return prototypes, coefficients


def _inside(boxes: torch.Tensor, size: tuple[int, ...]) -> torch.Tensor:
    """Mark the pixels of a map whose centres lie in each box, [N, 4], bool [N, h, w]."""
    import torch

    y, x = (torch.arange(length, device=boxes.device) + 0.5 for length in size)
    left, top, right, bottom = (edge[:, None] for edge in boxes.unbind(1))
    across, down = (x >= left) & (x < right), (y >= top) & (y < bottom)
    return down[:, :, None] & across[:, None]
