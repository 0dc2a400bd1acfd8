"""Find keypoints by a heatmap for each."""

from __future__ import annotations

import torch
from torch import nn

from penstock.core.sample import Batch
from penstock.pipeline.learning.networks.segmentation import Segmenter


class KeypointNet(nn.Module):
    """A heatmap for each keypoint; the keypoint lies at the heatmap's mean.

    Source of the mean: Sun et al., "Integral Human Pose Regression", ECCV 2018.

    Args:
        num_keypoints: Keypoints of an object.
        width: Channels at full size, a multiple of 8.
    """

    def __init__(self, *, num_keypoints: int, width: int = 16) -> None:
        super().__init__()
        self.maps = Segmenter(num_classes=num_keypoints, width=width)

    def forward(self, batch: Batch) -> dict[str, torch.Tensor]:
        """Heatmaps and what they say.

        Args:
            batch: ``image`` float [B, 3, H, W]; uint8 [B, H, W, 3] is turned into 0..1 first.

        Returns:
            ``keypoints`` float [B, K, 2], x and y in pixels, and ``heatmaps``, float
            [B, K, H, W], before the softmax over H and W.
        """
        return keypoints_in(self.maps(batch))


def keypoints_in(maps: torch.Tensor) -> dict[str, torch.Tensor]:
    """Keypoints at the means of heatmaps [B, K, H, W], with the maps, as `KeypointNet` gives."""
    maps = maps.float()
    height, width = maps.shape[2:]
    shares = maps.flatten(2).softmax(-1).view_as(maps)
    x = (shares.sum(2) * torch.arange(width, device=maps.device)).sum(-1)
    y = (shares.sum(3) * torch.arange(height, device=maps.device)).sum(-1)
    return {"keypoints": torch.stack([x, y], -1), "heatmaps": maps}
