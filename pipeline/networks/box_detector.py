"""A small anchor-free detector."""

from __future__ import annotations

import math
from itertools import pairwise

import torch
from torch import nn
from torch.nn import functional

from datasets.sample import Batch

_RARE = 0.01  # share of places that show an object, as it is assumed before training


class BoxDetector(nn.Module):
    """Convolutions down to 1/32 of the size and back to 1/4, where every place predicts a box.

    Each place gives a score for every class and the distances to the four edges of its box, as
    in Tian et al., "FCOS: A Simple and Strong Anchor-Free Object Detector", arXiv:2006.09214, on
    one level that is put together as in Lin et al., "Feature Pyramid Networks", CVPR 2017. Group
    norm, so that an image's outputs do not depend on its batch.

    Args:
        num_classes: Classes of boxes.
        width: Channels of the first stage, a multiple of 8.
    """

    stride = 4

    def __init__(self, *, num_classes: int, width: int = 16) -> None:
        super().__init__()
        if width < 8 or width % 8:
            raise ValueError(f"model box_detector: width is {width}, expected a multiple of 8")
        channels = [3, width, 2 * width, 4 * width, 4 * width, 4 * width]
        features = 4 * width
        self.stages = nn.ModuleList(
            _block(inputs, outputs, stride=2) for inputs, outputs in pairwise(channels)
        )
        self.laterals = nn.ModuleList(nn.Conv2d(c, features, 1) for c in channels[2:])
        self.mix = _block(features, features, stride=1)
        self.classes = nn.Sequential(
            _block(features, features, stride=1), _head(features, num_classes)
        )
        self.edges = nn.Sequential(_block(features, features, stride=1), _head(features, 4))
        nn.init.constant_(self.classes[-1].bias, -math.log((1 - _RARE) / _RARE))  # type: ignore[arg-type]

    def forward(self, batch: Batch) -> dict[str, torch.Tensor]:
        """Predictions for every place.

        Args:
            batch: ``image`` float [B, 3, H, W]; uint8 [B, H, W, 3] is turned into 0..1 first.

        Returns:
            ``logits`` float [B, N, num_classes], ``boxes`` float [B, N, 4], xyxy in pixels,
            ``points`` float [N, 2], where each place lies, and ``stride``, pixels between two
            places, a scalar.
        """
        image = batch["image"]
        if image.dtype == torch.uint8:
            image = image.permute(0, 3, 1, 2).float() / 255
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
        merged = self.mix(merged)
        logits = self.classes(merged).flatten(2).transpose(1, 2).float()
        # Distances grow with the square, so that all are positive and small ones are fine.
        reach = functional.softplus(self.edges(merged)).square().flatten(2).transpose(1, 2).float()
        points = self._points(merged)
        boxes = torch.cat(
            [points - reach[..., :2] * self.stride, points + reach[..., 2:] * self.stride], -1
        )
        stride = torch.tensor(float(self.stride), device=points.device)
        return {"logits": logits, "boxes": boxes, "points": points, "stride": stride}

    def _points(self, features: torch.Tensor) -> torch.Tensor:
        height, width = features.shape[2:]
        y = torch.arange(height, device=features.device, dtype=torch.float32)
        x = torch.arange(width, device=features.device, dtype=torch.float32)
        grid = torch.stack(torch.meshgrid(y, x, indexing="ij"), -1).flip(-1).reshape(-1, 2)
        return (grid + 0.5) * self.stride


def _block(inputs: int, outputs: int, *, stride: int) -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(inputs, outputs, 3, stride=stride, padding=1, bias=False),
        nn.GroupNorm(outputs // 8, outputs),
        nn.ReLU(inplace=True),
    )


def _head(inputs: int, outputs: int) -> nn.Conv2d:
    layer = nn.Conv2d(inputs, outputs, 3, padding=1)
    nn.init.normal_(layer.weight, std=0.01)
    nn.init.zeros_(layer.bias)  # type: ignore[arg-type]
    return layer
