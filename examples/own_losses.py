"""A model that returns its losses itself, as detection code bases do.

``python train.py imports=[examples/own_losses.py] model=own_losses``. In training, its outputs are
losses with names that begin with ``loss``, and training minimises their sum. In evaluation, its
outputs are the inputs of the task's metrics. A loss is the mean over the valid rows, and has a
gradient even without valid rows.
"""

# fmt: off
import torch
from torch import nn
from torch.nn import functional

from penstock.core.registry import register


class OwnLosses(nn.Module):
    """A classifier that also draws each class's features towards a centre."""
    def __init__(self, num_classes: int, width: int, weight: float) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Conv2d(3, width, 5, 4, 2), nn.GroupNorm(1, width), nn.ReLU(),
                                  nn.Conv2d(width, width, 3, 2, 1), nn.ReLU())
        self.head, self.weight = nn.Linear(width, num_classes), weight
        self.centres = nn.Parameter(torch.zeros(num_classes, width))
    def forward(self, batch: dict) -> dict:  # noqa: D102
        features = self.body(batch["image"]).amax((2, 3))
        logits = self.head(features)
        if not self.training:
            return {"logits": logits}
        label, valid = batch["label"], batch["valid"]
        by_row = {"loss_cls": functional.cross_entropy(logits, label, reduction="none"),
                  "loss_centre": (features - self.centres[label]).square().mean(1) * self.weight}
        zero = logits.new_zeros(())
        return {k: v.where(valid, zero).sum() / valid.sum().clamp(min=1) for k, v in by_row.items()}
@register("model", "own_losses")
def own_losses(*, num_classes: int | None, width: int = 32, weight: float = 0.01) -> OwnLosses:
    """A small classifier with losses of its own."""
    return OwnLosses(num_classes or 1, width, weight)
