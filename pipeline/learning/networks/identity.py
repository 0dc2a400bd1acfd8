"""Give each image a feature vector by which to tell identities apart."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional

from penstock.core.sample import Batch
from penstock.pipeline.learning.networks.classification import SmallCnn


class Embedder(nn.Module):
    """The convolutions of `SmallCnn`, then features of length 1; and a classifier of these.

    Args:
        num_classes: Identities to tell apart in training; 0: no classifier.
        width: Channels of the first stage, a multiple of 8.
        features: Numbers in a feature vector.
    """

    def __init__(self, *, num_classes: int, width: int = 24, features: int = 64) -> None:
        super().__init__()
        self.trunk = SmallCnn(num_classes=features, width=width)
        self.classifier = nn.Linear(features, num_classes) if num_classes else None

    def forward(self, batch: Batch) -> dict[str, torch.Tensor]:
        """Features, and scores of the identities.

        Args:
            batch: ``image`` float [B, 3, H, W]; uint8 [B, H, W, 3] is turned into 0..1 first.

        Returns:
            ``features`` float [B, features], each row of Euclidean length 1; with a classifier
            ``logits`` float [B, num_classes].
        """
        pooled = self.trunk(batch)
        outputs = {"features": functional.normalize(pooled.float(), dim=1)}
        if self.classifier is not None:
            outputs["logits"] = self.classifier(pooled)
        return outputs
