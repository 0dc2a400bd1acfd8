"""Turn pixels into 0..1 on the device: uint8 [B, H, W, C] to float32 [B, C, H, W]."""

from __future__ import annotations

from penstock.core.registry import register
from penstock.core.sample import Batch


@register("batch_transform", "to_float")
def to_float(batch: Batch) -> Batch:
    """Images to float32 from 0 to 1, channels first in shape and last in memory.

    Args:
        batch: With ``image`` uint8 [B, H, W, C], or a list of [H, W, C].

    Returns:
        The batch with ``image`` float32 [B, C, H, W], or a list of [C, H, W].
    """
    image = batch["image"]
    if isinstance(image, list):
        return {**batch, "image": [one.permute(2, 0, 1).float().div_(255) for one in image]}
    return {**batch, "image": image.permute(0, 3, 1, 2).float().div_(255)}
