"""Learn several tasks from features that they share."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import nn
from torch.nn import functional

from penstock.core.sample import Batch
from penstock.pipeline.learning.networks.detection import BoxHead
from penstock.pipeline.learning.networks.inputs import image_of
from penstock.pipeline.learning.networks.keypoints import keypoints_in
from penstock.pipeline.learning.networks.layers import FeaturePyramid, conv_block

OF_IMAGES = ("label", "labels", "values")
"""Fields with a number for each class of an image as a whole."""


class MultiNet(nn.Module):
    """A feature pyramid that all tasks share, and the head that each task's field asks for.

    Args:
        heads: By the task's name: its field (``label``, ``labels``, ``values``,
            ``box_labels``, ``keypoints`` or ``mask``) and the number of classes, or of keypoints.
        width: Channels of the first stage, a multiple of 8.
    """

    def __init__(self, heads: Mapping[str, tuple[str, int]], *, width: int = 16) -> None:
        super().__init__()
        self.pyramid = FeaturePyramid(width=width)
        channels, stride = self.pyramid.channels, self.pyramid.stride
        self.fields = {name: field for name, (field, _) in heads.items()}
        # A module may not have every name that a task may, so heads are numbered.
        self.heads = nn.ModuleList()
        for field, count in heads.values():
            if field in OF_IMAGES:
                self.heads.append(nn.Linear(channels, count))
            elif field == "box_labels":
                self.heads.append(BoxHead(channels, count, stride=stride))
            else:
                self.heads.append(_PixelHead(channels, count))

    def forward(self, batch: Batch) -> dict[str, Any]:
        """Outputs for each task, by its name.

        Args:
            batch: ``image`` float [B, 3, H, W]; uint8 [B, H, W, 3] is turned into 0..1 first.
        """
        features, coarsest = self.pyramid(batch)
        image = image_of(batch)
        outputs: dict[str, Any] = {}
        for (name, field), head in zip(self.fields.items(), self.heads, strict=True):
            if field in OF_IMAGES:
                outputs[name] = head(coarsest.mean(dim=(2, 3)))
            elif field == "box_labels":
                outputs[name] = head(features)
            else:
                maps = head(features, image)
                outputs[name] = keypoints_in(maps) if field == "keypoints" else maps
        return outputs


class _PixelHead(nn.Module):
    """Features at the image's size, beside its pixels, to a map for each class."""

    def __init__(self, features: int, maps: int, *, width: int = 16) -> None:
        super().__init__()
        self.narrow = conv_block(features, width, stride=1)
        self.mix = conv_block(width + 3, width, stride=1)
        self.maps = nn.Conv2d(width, maps, 3, padding=1)

    def forward(self, features: torch.Tensor, image: torch.Tensor) -> torch.Tensor:
        grown = functional.interpolate(self.narrow(features), size=image.shape[2:], mode="nearest")
        maps: torch.Tensor = self.maps(self.mix(torch.cat([grown, image], 1)))
        return maps
