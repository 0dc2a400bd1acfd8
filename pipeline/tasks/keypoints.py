"""Find the keypoints of one object: heatmaps and distances, the share that is found."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
from annotated_types import Gt

from penstock.core.registry import register
from penstock.core.sample import Batch
from penstock.pipeline.learning.outputs import (
    mean_over_valid,
    named,
    output_of,
    size_of,
    valid_rows,
)
from penstock.pipeline.learning.places import file_places, file_sizes

if TYPE_CHECKING:
    import torch


@register("task", "keypoints")
class Keypoints:
    """Keypoints of one object in an image: heatmaps and distances, the share that is found.

    Only visible keypoints (visibility 1 or 2) inside of the image are trained on and counted.

    Args:
        num_classes: Keypoints of an object.
        class_names: Their names.
        near: How far a keypoint that counts as found may be from its place, as a share of the
            image's longer side.
        distance_weight: What the loss of distance weighs beside that of the heatmaps.
    """

    field = "keypoints"

    def __init__(
        self,
        *,
        num_classes: int | None,
        class_names: tuple[str, ...] | None = None,
        near: Annotated[float, Gt(0)] = 0.05,
        distance_weight: float = 1.0,
    ) -> None:
        if not num_classes:
            raise ValueError(
                "task keypoints: the data names no keypoints; choose dataset/annotations=coco "
                "with keypoints, or another task"
            )
        self.num_keypoints = num_classes
        self.class_names = class_names
        self.near = near
        self.distance_weight = distance_weight

    def losses(self, outputs: Any, batch: Batch) -> dict[str, torch.Tensor]:
        """``distance``, in shares of the image's longer side, and ``heatmaps``, where given.

        Each is the mean over valid rows of the row's mean over its visible keypoints; 0, with a
        gradient, if there are none.

        Args:
            outputs: ``keypoints`` float [B, K, 2], x and y in pixels; and ``heatmaps`` float
                [B, K, H, W] before their softmax, if the model makes some.
            batch: ``keypoints`` float [B, K, 3], ``image`` and ``valid`` bool [B].
        """
        from torch.nn import functional

        found = _found(outputs)
        truth, counted = self._truth(batch)
        side = max(size_of(batch["image"]))
        by_point = (found - truth).abs().sum(-1) / side
        losses = {"distance": _mean(by_point, counted, batch) * self.distance_weight}
        if (maps := outputs.get("heatmaps")) is not None:
            height, width = size_of(batch["image"])
            if maps.shape[2:] != (height, width):
                raise ValueError(
                    f"task keypoints: the model gave heatmaps {list(maps.shape)}, expected "
                    f"[B, {self.num_keypoints}, {height}, {width}], a value for each pixel of the "
                    f"image; let it end with torch.nn.functional.interpolate(heatmaps, "
                    f"image.shape[-2:], mode='bilinear'), or give keypoints alone"
                )
            x = truth[..., 0].round().clamp(0, width - 1).long()
            y = truth[..., 1].round().clamp(0, height - 1).long()
            by_point = functional.cross_entropy(
                maps.flatten(2).flatten(0, 1), (y * width + x).flatten(), reduction="none"
            )
            losses["heatmaps"] = _mean(by_point.view_as(counted), counted, batch)
        return losses

    def metrics(self) -> Any:
        """``pck``, the share of keypoints that are found, and ``error``, the mean distance."""
        from torchmetrics import MeanMetric

        from penstock.pipeline.learning.metrics import collected

        return collected(pck=MeanMetric(), error=MeanMetric())

    def update(self, metrics: Any, outputs: Any, batch: Batch) -> None:
        """Add the valid rows of a batch to `metrics`; ``error`` is in pixels."""
        found = _found(outputs).detach()
        found, truth, counted = valid_rows(batch, found, *self._truth(batch))
        distances = (found - truth).square().sum(-1).sqrt()[counted]
        if len(distances):
            metrics["error"].update(distances)
            metrics["pck"].update((distances <= self.near * max(size_of(batch["image"]))).float())

    def predictions(self, outputs: Any, batch: Batch) -> dict[str, Any]:
        """Return each keypoint as a column of its name or number: x and y.

        Keypoints are in pixels of the file, which has ``image_height`` rows and ``image_width``
        columns.
        """
        import torch

        places = file_places(batch)
        found = _found(outputs).float().cpu()
        moved = np.stack(
            [place.points(points) for place, points in zip(places, found, strict=True)]
        )
        names = named(range(self.num_keypoints), self.class_names)
        columns = {
            f"keypoint_{name}": torch.from_numpy(moved[:, n].astype(np.float32))
            for n, name in enumerate(names)
        }
        return {**columns, **file_sizes(places)}

    def _truth(self, batch: Batch) -> tuple[torch.Tensor, torch.Tensor]:
        """Places float [B, K, 2] and whether each counts, bool [B, K]."""
        points: Any = batch.get("keypoints")
        if points is None or isinstance(points, list):
            has = "lists" if points is not None else f"only {', '.join(sorted(batch))}"
            raise ValueError(
                f"task keypoints: expected 'keypoints' [B, {self.num_keypoints}, 3] in the batch, "
                f"got {has}; choose dataset/annotations=coco and collate=stack"
            )
        if points.shape[1:] != (self.num_keypoints, 3):
            raise ValueError(
                f"task keypoints: keypoints are {list(points.shape)}, expected "
                f"[B, {self.num_keypoints}, 3]: images of one object with {self.num_keypoints}; "
                f"crop several objects, such as faces, to images of their own"
            )
        return points[..., :2], points[..., 2] > 0


def _mean(by_point: torch.Tensor, counted: torch.Tensor, batch: Batch) -> torch.Tensor:
    """Average [B, K] over the points that count of each row, and then over valid rows."""
    by_row = by_point.where(counted, by_point.new_zeros(())).sum(1) / counted.sum(1).clamp(min=1)
    return mean_over_valid(by_row, batch.get("valid"))


def _found(outputs: Any) -> torch.Tensor:
    expected = "a dict with keypoints [B, K, 2], such as model=keypoint_net gives"
    return output_of(outputs, "keypoints", task="keypoints", expected=expected)
