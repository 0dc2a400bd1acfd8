"""Find boxes and a mask for each."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional

from penstock.core.sample import Batch
from penstock.pipeline.learning.networks.detection import BoxHead
from penstock.pipeline.learning.networks.layers import FeaturePyramid, conv_block


class InstanceNet(nn.Module):
    """A detector whose boxes have masks, each a mixture of a few that all share.

    As in Bolya et al., "YOLACT: Real-time Instance Segmentation", ICCV 2019, section 3.

    Args:
        num_classes: Classes of boxes.
        width: Channels of the first stage, a multiple of 8.
        prototypes: Masks that are shared.
    """

    def __init__(self, *, num_classes: int, width: int = 16, prototypes: int = 16) -> None:
        super().__init__()
        self.pyramid = FeaturePyramid(width=width)
        channels = self.pyramid.channels
        self.head = BoxHead(channels, num_classes, stride=self.pyramid.stride)
        self.mixture = nn.Sequential(
            conv_block(channels, channels, stride=1), nn.Conv2d(channels, prototypes, 3, padding=1)
        )
        self.finer = conv_block(channels, channels, stride=1)
        self.shared = nn.Sequential(
            conv_block(channels, channels, stride=1), nn.Conv2d(channels, prototypes, 1)
        )

    def forward(self, batch: Batch) -> dict[str, torch.Tensor]:
        """Predictions for every place, as `BoxHead` gives them, and their masks.

        Args:
            batch: ``image`` float [B, 3, H, W]; uint8 [B, H, W, 3] is turned into 0..1 first.

        Returns:
            Those, and ``coefficients`` float [B, N, P] and ``prototypes`` float [B, P, H / 2,
            W / 2]: the mask of a place, before its sigmoid, is the sum of the latter by the former.
        """
        features = self.pyramid(batch)[0]
        outputs: dict[str, torch.Tensor] = self.head(features)
        coefficients = self.mixture(features).flatten(2).transpose(1, 2).float()
        grown = functional.interpolate(self.finer(features), scale_factor=2.0, mode="nearest")
        prototypes = self.shared(grown).float()
        return {**outputs, "coefficients": coefficients, "prototypes": prototypes}
