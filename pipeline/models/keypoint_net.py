"""A small network for keypoints."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pipeline.registry import register

if TYPE_CHECKING:
    from pipeline.networks.keypoint_net import KeypointNet


@register("model", "keypoint_net")
def keypoint_net(*, num_classes: int | None, width: int = 16) -> KeypointNet:
    """A small network that finds the keypoints of one object in images of any size.

    Args:
        num_classes: Keypoints of an object, as many as the data names.
        width: Channels at full size; coarser levels have up to 8 times as many.

    Raises:
        ValueError: The data names no keypoints.
    """
    from pipeline.networks.keypoint_net import KeypointNet

    if not num_classes:
        raise ValueError(
            "model keypoint_net finds keypoints, and the data names none; choose "
            "dataset/annotations=coco with keypoints, or another model"
        )
    return KeypointNet(num_keypoints=num_classes, width=width)
