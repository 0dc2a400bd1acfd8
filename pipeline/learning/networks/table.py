"""Give each row of a table a class, or a number."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import nn
from torch.nn import functional

from penstock.core.sample import Batch


class TableNet(nn.Module):
    """Embedded categories beside the numbers, then residual blocks of two layers.

    Source: the ResNet of Gorishniy et al., "Revisiting Deep Learning Models for Tabular Data",
    NeurIPS 2021, section 3.2; with layer norm, so that a row's outputs do not depend on its
    batch.

    Args:
        num_features: Numbers in a row.
        num_categories: Ids of each category, with 0 for the unknown.
        num_outputs: Classes, or 1 for a number.
        width: Channels.
        depth: Blocks.
        dropout: Share of a block's channels dropped in training.
    """

    def __init__(
        self,
        *,
        num_features: int,
        num_categories: Sequence[int],
        num_outputs: int,
        width: int = 64,
        depth: int = 3,
        dropout: float = 0.1,
    ) -> None:
        super().__init__()
        sizes = [min(32, 2 + round(1.6 * n**0.5)) for n in num_categories]
        self.embeddings = nn.ModuleList(
            nn.Embedding(n, size) for n, size in zip(num_categories, sizes, strict=True)
        )
        self.first = nn.Linear(num_features + sum(sizes), width)
        self.blocks = nn.ModuleList(_Block(width, dropout) for _ in range(depth))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, num_outputs)

    def forward(self, batch: Batch) -> torch.Tensor:
        """Logits, or the scaled number, float [B, num_outputs].

        Args:
            batch: ``features`` float [B, F] and ``categories`` int64 [B, C].
        """
        categories = batch["categories"]
        parts = [batch["features"]]
        parts += [embed(categories[:, n]) for n, embed in enumerate(self.embeddings)]
        rows = self.first(torch.cat(parts, 1))
        for block in self.blocks:
            rows = block(rows)
        outputs: torch.Tensor = self.head(functional.relu(self.norm(rows)))
        return outputs


class _Block(nn.Module):
    def __init__(self, width: int, dropout: float) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.LayerNorm(width),
            nn.Linear(width, 2 * width),
            nn.ReLU(inplace=True),
            nn.Dropout(dropout),
            nn.Linear(2 * width, width),
        )

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        added: torch.Tensor = rows + self.layers(rows)
        return added
