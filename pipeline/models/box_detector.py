"""A small anchor-free detector."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pipeline.registry import register

if TYPE_CHECKING:
    from pipeline.networks.box_detector import BoxDetector


@register("model", "box_detector")
def box_detector(*, num_classes: int | None, width: int = 16) -> BoxDetector:
    """A small anchor-free detector for images of any size.

    Args:
        num_classes: Classes of the data's boxes.
        width: Channels of the first stage; the others have 2 and 4 times as many.

    Raises:
        ValueError: The data has no classes of boxes.
    """
    from pipeline.networks.box_detector import BoxDetector

    if not num_classes:
        raise ValueError(
            "model box_detector detects, and the data has no classes of boxes; choose "
            "dataset/annotations=voc, coco or boxes_csv, or another model"
        )
    return BoxDetector(num_classes=num_classes, width=width)
