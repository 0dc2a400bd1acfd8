"""Give each pixel a class."""

from __future__ import annotations

from itertools import pairwise

import torch
from torch import nn
from torch.nn import functional

from penstock.core.sample import Batch
from penstock.pipeline.learning.networks.inputs import image_of
from penstock.pipeline.learning.networks.layers import conv_block


class Segmenter(nn.Module):
    """Convolutions down to 1/16 of the size and back up, with the finer features beside them.

    Source: Ronneberger, Fischer and Brox, "U-Net", MICCAI 2015. The coarsest features also get
    the mean over the image, so that every pixel knows the scene. Group norm, so that an image's
    outputs do not depend on its batch.

    Args:
        num_classes: Classes of pixels.
        width: Channels at full size, a multiple of 8; then 2, 4, 8 and 8 times as many.
    """

    def __init__(self, *, num_classes: int, width: int = 16) -> None:
        super().__init__()
        channels = [width, 2 * width, 4 * width, 8 * width, 8 * width]
        self.stem = _block(3, width)
        self.down = nn.ModuleList(
            _block(inputs, outputs, stride=2) for inputs, outputs in pairwise(channels)
        )
        self.scene = nn.Linear(channels[-1], channels[-1])
        self.up = nn.ModuleList(
            _block(coarse + fine, fine)
            for coarse, fine in zip(channels[:0:-1], channels[-2::-1], strict=True)
        )
        self.head = nn.Conv2d(width, num_classes, 1)

    def forward(self, batch: Batch) -> torch.Tensor:
        """Logits, float [B, num_classes, H, W].

        Args:
            batch: ``image`` float [B, 3, H, W]; uint8 [B, H, W, 3] is turned into 0..1 first.
        """
        image = image_of(batch)
        levels = [self.stem(image)]
        for stage in self.down:
            levels.append(stage(levels[-1]))
        features = levels.pop()
        features = features + self.scene(features.mean(dim=(2, 3)))[:, :, None, None]
        for stage in self.up:
            finer = levels.pop()
            grown = functional.interpolate(features, size=finer.shape[2:], mode="nearest")
            features = stage(torch.cat([grown, finer], 1))
        logits: torch.Tensor = self.head(features)
        return logits


def _block(inputs: int, outputs: int, *, stride: int = 1) -> nn.Sequential:
    first = conv_block(inputs, outputs, stride=stride)
    return nn.Sequential(*first, *conv_block(outputs, outputs, stride=1))
