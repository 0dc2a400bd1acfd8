"""Find boxes: each place of a feature map predicts one."""

from __future__ import annotations

import math

import torch
from torch import nn
from torch.nn import functional

from penstock.core.sample import Batch
from penstock.pipeline.learning.networks.layers import FeaturePyramid, conv_block

_RARE = 0.01  # share of places that show an object, as it is assumed before training


class BoxDetector(nn.Module):
    """A feature pyramid and a head of boxes.

    Args:
        num_classes: Classes of boxes.
        width: Channels of the first stage, a multiple of 8.
    """

    def __init__(self, *, num_classes: int, width: int = 16) -> None:
        super().__init__()
        self.pyramid = FeaturePyramid(width=width)
        self.head = BoxHead(self.pyramid.channels, num_classes, stride=self.pyramid.stride)

    def forward(self, batch: Batch) -> dict[str, torch.Tensor]:
        """Predictions for every place, as `BoxHead` gives them.

        Args:
            batch: ``image`` float [B, 3, H, W]; uint8 [B, H, W, 3] is turned into 0..1 first.
        """
        boxes: dict[str, torch.Tensor] = self.head(self.pyramid(batch)[0])
        return boxes


class BoxHead(nn.Module):
    """Each place of a feature map predicts a box.

    It gives a score for every class and the distances to the four edges of its box, as in Tian et
    al., "FCOS: A Simple and Strong Anchor-Free Object Detector", arXiv:2006.09214, on one level.

    Args:
        features: Channels of the map.
        num_classes: Classes of boxes.
        stride: Pixels between two places.
    """

    def __init__(self, features: int, num_classes: int, *, stride: int) -> None:
        super().__init__()
        self.stride = stride
        self.classes = nn.Sequential(
            conv_block(features, features, stride=1), _head(features, num_classes)
        )
        self.edges = nn.Sequential(conv_block(features, features, stride=1), _head(features, 4))
        nn.init.constant_(self.classes[-1].bias, -math.log((1 - _RARE) / _RARE))  # type: ignore[arg-type]

    def forward(self, features: torch.Tensor) -> dict[str, torch.Tensor]:
        """Predictions for every place.

        Args:
            features: float [B, C, h, w].

        Returns:
            ``logits`` float [B, N, num_classes], ``boxes`` float [B, N, 4], xyxy in pixels,
            ``points`` float [N, 2], where each place lies, and ``stride``, pixels between two
            places, a scalar.
        """
        logits = self.classes(features).flatten(2).transpose(1, 2).float()
        # Distances grow with the square, so that all are positive and small ones are fine.
        reach = functional.softplus(self.edges(features)).square().flatten(2)
        reach = reach.transpose(1, 2).float()
        points = self._points(features)
        boxes = torch.cat(
            [points - reach[..., :2] * self.stride, points + reach[..., 2:] * self.stride], -1
        )
        stride = points.new_full((), float(self.stride))
        return {"logits": logits, "boxes": boxes, "points": points, "stride": stride}

    def _points(self, features: torch.Tensor) -> torch.Tensor:
        height, width = features.shape[2:]
        y = torch.arange(height, device=features.device, dtype=torch.float32)
        x = torch.arange(width, device=features.device, dtype=torch.float32)
        grid = torch.stack(torch.meshgrid(y, x, indexing="ij"), -1).flip(-1).reshape(-1, 2)
        return (grid + 0.5) * self.stride


def _head(inputs: int, outputs: int) -> nn.Conv2d:
    layer = nn.Conv2d(inputs, outputs, 3, padding=1)
    nn.init.normal_(layer.weight, std=0.01)
    nn.init.zeros_(layer.bias)  # type: ignore[arg-type]
    return layer
