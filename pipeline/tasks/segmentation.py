"""Segment: a class for every pixel, cross-entropy, intersection over union."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
from annotated_types import Ge, Le

from penstock.core.contracts import Index
from penstock.core.registry import register
from penstock.core.sample import Batch
from penstock.pipeline.learning.class_weights import ClassWeights, Weights
from penstock.pipeline.learning.outputs import logits_of, mean_over_valid, size_of, valid_rows
from penstock.pipeline.learning.places import file_places

if TYPE_CHECKING:
    import torch

_IGNORED = -100


@register("task", "segmentation")
class Segmentation:
    """A class for every pixel: cross-entropy, mean intersection over union, pixel accuracy.

    Args:
        num_classes: Classes of the data's masks, the ignored one among them if it has a name.
        class_names: Their names.
        ignore: Class ids of pixels that are neither trained on nor counted, such as void.
        class_metrics: Also report the intersection over union of each class.
        label_smoothing: Share of a pixel's target spread over all classes, 0 .. 1.
        class_weights: What the loss of a pixel is multiplied by, by its class: a weight by name (1
            where it is not said), or all in their order.
    """

    field = "mask"

    def __init__(
        self,
        *,
        num_classes: int | None,
        class_names: tuple[str, ...] | None = None,
        ignore: list[Annotated[int, Ge(0)]] = [],  # noqa: B006 - never changed
        class_metrics: bool = False,
        label_smoothing: Annotated[float, Ge(0), Le(1)] = 0.0,
        class_weights: Weights = None,
    ) -> None:
        if not num_classes:
            raise ValueError(
                "task segmentation: how many classes the masks have is not known; name them in "
                "classes.txt beside the masks, or by dataset.annotations.classes=[sky,road]; of "
                "masks in the records, dataset/annotations=in_records "
                "dataset.annotations.classes.mask=[sky,road]"
            )
        self.num_classes = num_classes
        self.weights = ClassWeights(class_weights, num_classes=num_classes, class_names=class_names)
        self.class_names = class_names
        self.ignore = tuple(ignore)
        self.class_metrics = class_metrics
        self.label_smoothing = label_smoothing

    def fit(self, index: Index | None) -> dict[str, Any]:
        """Count the records of each class, if their weights are to be balanced."""
        return self.weights.fit(index, self.field)

    def learn(self, figures: Mapping[str, Any]) -> None:
        """Take the figures that `fit` gave."""
        self.weights.learn(figures)

    def losses(self, outputs: Any, batch: Batch) -> dict[str, torch.Tensor]:
        """``cross_entropy``: the mean over valid rows of each row's mean over its pixels.

        Ignored pixels count nowhere; a row that has no others has a loss of 0.

        Args:
            outputs: Logits, float [B, num_classes, H, W], or a dict that has them as ``logits``.
            batch: ``mask`` integer [B, H, W] and ``valid`` bool [B].
        """
        from torch.nn import functional

        mask = self._mask(batch)
        logits = self._logits(outputs, mask.shape[1:])
        pixels = functional.cross_entropy(
            logits.float(), mask, reduction="none", ignore_index=_IGNORED,
            weight=self.weights.like(logits.float()), label_smoothing=self.label_smoothing,
        )  # fmt: skip
        counted = (mask != _IGNORED).sum(dim=(1, 2))
        by_row = pixels.sum(dim=(1, 2)) / counted.clamp(min=1)
        return {"cross_entropy": mean_over_valid(by_row, batch.get("valid"))}

    def _logits(self, outputs: Any, size: Sequence[int] | None) -> torch.Tensor:
        """Take the logits, float [B, num_classes, H, W], of that height and width.

        Raises:
            ValueError: They are others, or of another height and width.
        """
        shape = ("B", self.num_classes, "H", "W")
        logits = logits_of(outputs, task="segmentation", shape=shape)
        if size is not None and logits.shape[2:] != tuple(size):
            raise ValueError(
                f"task segmentation: the model gave logits {list(logits.shape)}, expected "
                f"[B, {self.num_classes}, {size[0]}, {size[1]}], a class for each pixel of the "
                f"batch; let it end with torch.nn.functional.interpolate(logits, "
                f"image.shape[-2:], mode='bilinear')"
            )
        return logits

    def metrics(self) -> Any:
        """``miou``, over the classes that occur in truth or prediction, and ``pixel_accuracy``."""
        return self._metrics(by_class=False)

    def metrics_by_class(self) -> Any:
        """The same, ``iou`` of each class, and ``confusion`` of pixels."""
        return self._metrics(by_class=True)

    def _metrics(self, *, by_class: bool) -> Any:
        from penstock.pipeline.learning.metrics import MaskIou, collected

        masks = MaskIou(
            self.num_classes,
            ignore=self.ignore,
            ignored_id=_IGNORED,
            class_names=self.class_names if self.class_metrics else None,
            by_class=by_class,
        )
        return collected(masks=masks)

    def update(self, metrics: Any, outputs: Any, batch: Batch) -> None:
        """Add the valid rows of a batch to `metrics`."""
        mask = self._mask(batch)
        predicted = self._logits(outputs, mask.shape[1:]).argmax(1)
        predicted, mask = valid_rows(batch, predicted, mask)
        if len(mask):
            metrics.update(predicted, mask)

    def predictions(self, outputs: Any, batch: Batch) -> dict[str, Any]:
        """Return ``mask``, the likeliest class id of each pixel of the file, as a grey PNG.

        The PNG has 8 bits, or 16 for more than 255 classes. Pixels that a crop hides from the
        model have the largest value, 255 or 65,535.
        """
        import cv2

        kind = np.uint8 if self.num_classes <= 255 else np.uint16
        size = size_of(batch["image"]) if "image" in batch else None
        masks = list(self._logits(outputs, size).argmax(1).cpu().numpy().astype(kind))
        if "image" in batch:
            unseen = int(np.iinfo(kind).max)
            places = file_places(batch)
            masks = [p.mask(m, outside=unseen) for p, m in zip(places, masks, strict=True)]
        return {"mask": [cv2.imencode(".png", mask)[1].tobytes() for mask in masks]}

    def _mask(self, batch: Batch) -> torch.Tensor:
        """Class ids int64 [B, H, W]; ignored pixels are `_IGNORED`.

        Raises:
            ValueError: There is no mask, or it holds what is no class.
        """
        import torch

        if "mask" not in batch:
            raise ValueError(
                f"task segmentation: the batch has no 'mask', only {', '.join(sorted(batch))}; "
                f"choose dataset/annotations=mask_folder"
            )
        mask: torch.Tensor = batch["mask"].long()
        ignored = torch.zeros_like(mask, dtype=torch.bool)
        for number in self.ignore:
            ignored |= mask == number
        wrong = ((mask < 0) | (mask >= self.num_classes)) & ~ignored
        if mask.device.type == "cpu" and wrong.any():
            row, y, x = wrong.nonzero()[0].tolist()
            raise ValueError(
                f"task segmentation: the mask of {batch['key'][row]!r} has the value "
                f"{int(mask[row, y, x])} at {x}, {y}, expected 0 to {self.num_classes - 1}; name "
                f"it in dataset.annotations.classes, or in task.ignore; values that stand for the "
                f"ids 0 and 1 are told by dataset.decode.mask_colors=[0,255]"
            )
        return mask.masked_fill(ignored, _IGNORED)
