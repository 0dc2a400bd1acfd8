"""Give each image a class."""

from __future__ import annotations

from itertools import pairwise

import torch
from torch import nn

from penstock.core.sample import Batch
from penstock.pipeline.learning.networks.inputs import image_of
from penstock.pipeline.learning.networks.layers import conv_block


class SmallCnn(nn.Module):
    """Four stages of convolution, group norm and pooling, then the mean over the image.

    Group norm, because its figures come from each image alone: outputs and gradients do not
    depend on how a batch is cut over ranks or accumulated (Wu and He, "Group Normalization",
    ECCV 2018).

    Args:
        num_classes: Number of logits.
        width: Channels of the first stage, a multiple of 8; then 2, 4 and 4 times as many.
        dropout: Share of the pooled features dropped in training.
    """

    def __init__(self, *, num_classes: int, width: int = 24, dropout: float = 0.0) -> None:
        super().__init__()
        channels = [3, width, 2 * width, 4 * width, 4 * width]
        self.stages = nn.Sequential(
            *(
                _stage(inputs, outputs, stride=2 if number == 0 else 1)
                for number, (inputs, outputs) in enumerate(pairwise(channels))
            )
        )
        self.dropout = nn.Dropout(dropout)
        self.head = nn.Linear(channels[-1], num_classes)

    def forward(self, batch: Batch) -> torch.Tensor:
        """Logits, float [B, num_classes].

        Args:
            batch: ``image`` float [B, 3, H, W]; uint8 [B, H, W, 3] is turned into 0..1 first.
        """
        image = image_of(batch)
        # A mean in place of adaptive pooling: any size, and its gradient is exact on CUDA too.
        features = self.stages(image).mean(dim=(2, 3))
        return self.head(self.dropout(features))


def _stage(inputs: int, outputs: int, *, stride: int) -> nn.Sequential:
    block = conv_block(inputs, outputs, stride=stride)
    return nn.Sequential(*block, nn.MaxPool2d(2, ceil_mode=True))
