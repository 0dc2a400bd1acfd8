"""A plain ResNet-50, the size that training steps are measured with."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import nn


class Bottleneck(nn.Module):
    """1 x 1, 3 x 3 and 1 x 1 convolutions around a shortcut (He et al. 2016, section 4.1)."""

    def __init__(self, channels: int, width: int, stride: int) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(channels, width, 1, bias=False),
            nn.BatchNorm2d(width),
            nn.ReLU(inplace=True),
            nn.Conv2d(width, width, 3, stride, 1, bias=False),
            nn.BatchNorm2d(width),
            nn.ReLU(inplace=True),
            nn.Conv2d(width, 4 * width, 1, bias=False),
            nn.BatchNorm2d(4 * width),
        )
        self.shortcut: nn.Module = nn.Identity()
        if stride > 1 or channels != 4 * width:
            self.shortcut = nn.Sequential(
                nn.Conv2d(channels, 4 * width, 1, stride, bias=False), nn.BatchNorm2d(4 * width)
            )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Float [B, channels, H, W] to [B, 4 * width, H / stride, W / stride]."""
        return torch.relu(self.body(x) + self.shortcut(x))


def resnet(
    blocks: Sequence[int] = (3, 4, 6, 3), *, width: int = 64, num_classes: int = 1000
) -> nn.Sequential:
    """A residual network for float [B, 3, H, W]; ResNet-50 as it stands.

    Args:
        blocks: Blocks of each of the stages; the stride of all but the first is 2.
        width: Channels of the stem.
        num_classes: Outputs.
    """
    layers: list[nn.Module] = [
        nn.Conv2d(3, width, 7, 2, 3, bias=False),
        nn.BatchNorm2d(width),
        nn.ReLU(inplace=True),
        nn.MaxPool2d(3, 2, 1),
    ]
    channels = width
    for stage, count in enumerate(blocks):
        for number in range(count):
            stride = 2 if stage and not number else 1
            layers.append(Bottleneck(channels, width * 2**stage, stride))
            channels = 4 * width * 2**stage
    layers += [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, num_classes)]
    return nn.Sequential(*layers)
