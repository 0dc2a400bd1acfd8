"""Build the layers that several networks share."""

from __future__ import annotations

from itertools import pairwise

import torch
from torch import nn
from torch.nn import functional

from penstock.core.sample import Batch
from penstock.pipeline.learning.networks.inputs import image_of


def conv_block(inputs: int, outputs: int, *, stride: int) -> nn.Sequential:
    """A convolution, group norm and its activation."""
    return nn.Sequential(
        nn.Conv2d(inputs, outputs, 3, stride=stride, padding=1, bias=False),
        nn.GroupNorm(outputs // 8, outputs),
        nn.ReLU(inplace=True),
    )


class FeaturePyramid(nn.Module):
    """Convolutions down to 1/32 of the size and back to 1/4.

    Source: Lin et al., "Feature Pyramid Networks for Object Detection", CVPR 2017. Group norm, so
    that an image's outputs do not depend on its batch.

    Args:
        width: Channels of the first stage, a multiple of 8.

    Attributes:
        channels: Channels of what comes out.
    """

    stride = 4

    def __init__(self, *, width: int) -> None:
        super().__init__()
        sizes = [3, width, 2 * width, 4 * width, 4 * width, 4 * width]
        self.channels = 4 * width
        self.stages = nn.ModuleList(
            conv_block(inputs, outputs, stride=2) for inputs, outputs in pairwise(sizes)
        )
        self.laterals = nn.ModuleList(nn.Conv2d(c, self.channels, 1) for c in sizes[2:])
        self.mix = conv_block(self.channels, self.channels, stride=1)

    def forward(self, batch: Batch) -> tuple[torch.Tensor, torch.Tensor]:
        """Features of an image's places, and of all of it.

        Args:
            batch: ``image`` float [B, 3, H, W]; uint8 [B, H, W, 3] is turned into 0..1 first.

        Returns:
            float [B, C, H / 4, W / 4], and the coarsest level, float [B, C, H / 32, W / 32].
        """
        image = image_of(batch)
        levels = []
        for stage in self.stages:
            image = stage(image)
            levels.append(image)
        merged: torch.Tensor | None = None
        for lateral, level in zip(reversed(self.laterals), reversed(levels[1:]), strict=True):
            side = lateral(level)
            if merged is not None:
                side = side + functional.interpolate(merged, size=side.shape[2:], mode="nearest")
            merged = side
        assert merged is not None
        return self.mix(merged), levels[-1]
