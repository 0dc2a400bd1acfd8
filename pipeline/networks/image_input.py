"""The images of a batch, as networks take them."""

from __future__ import annotations

import torch

from datasets.encoded import refuse_encoded
from datasets.sample import Batch


def image_of(batch: Batch) -> torch.Tensor:
    """The batch's images, float [B, 3, H, W]; bytes [B, H, W, 3] are turned into 0..1.

    Raises:
        ValueError: They were not decoded.
    """
    image: torch.Tensor = batch["image"]
    refuse_encoded(image)
    return image.permute(0, 3, 1, 2).float() / 255 if image.dtype == torch.uint8 else image
