"""Metrics of several tasks side by side."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn


class NamedMetrics(nn.ModuleDict):
    """Collections of metrics by name; a figure is called ``<name>_<figure>``."""

    def compute(self) -> dict[str, torch.Tensor]:
        """All figures, over all ranks."""
        metrics: dict[str, Any] = dict(self.items())
        return {
            f"{name}_{figure}": value
            for name, collection in metrics.items()
            for figure, value in collection.compute().items()
        }

    def reset(self) -> None:
        """Forget everything."""
        collections: Any = self.values()
        for collection in collections:
            collection.reset()
