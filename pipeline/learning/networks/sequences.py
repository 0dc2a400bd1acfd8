"""Give each sequence a class."""

from __future__ import annotations

import torch
from torch import nn

from penstock.core.sample import Batch


class SequenceCnn(nn.Module):
    """Embedding, two convolutions along the sequence, and the largest value of each channel.

    What a row was filled up with is zero before every convolution and left out of the largest
    value, so outputs do not depend on the length of the batch.

    Args:
        num_classes: Number of logits.
        num_tokens: Tokens are 0 to this less one.
        field: The sequence in the batch.
        num_features: Features of each element; None: the elements are tokens.
        width: Channels.
    """

    def __init__(
        self,
        *,
        num_classes: int,
        num_tokens: int = 256,
        field: str = "tokens",
        num_features: int | None = None,
        width: int = 64,
    ) -> None:
        super().__init__()
        self.field = field
        self.num_tokens = num_tokens if num_features is None else None
        self.embedding: nn.Module = (
            nn.Embedding(num_tokens, width)
            if num_features is None
            else nn.Linear(num_features, width)
        )
        self.convolutions = nn.ModuleList(nn.Conv1d(width, width, 5, padding=2) for _ in range(2))
        self.head = nn.Linear(width, num_classes)

    def forward(self, batch: Batch) -> torch.Tensor:
        """Logits, float [B, num_classes].

        Args:
            batch: The field, integer [B, T] or float [B, T, features], and ``<field>_mask``,
                bool [B, T].

        Raises:
            ValueError: The batch lacks them, or a token is outside of the vocabulary.
        """
        values, mask = self._inputs(batch)
        hidden = self.embedding(values.long() if self.num_tokens else values.float())
        hidden, there = hidden.transpose(1, 2), mask[:, None]
        for convolution in self.convolutions:
            hidden = torch.relu(convolution(hidden * there))
        # After a ReLU nothing is below 0: that is what an empty sequence has.
        return self.head((hidden * there).amax(dim=2))

    def _inputs(self, batch: Batch) -> tuple[torch.Tensor, torch.Tensor]:
        for name in (self.field, f"{self.field}_mask"):
            if name not in batch:
                raise ValueError(
                    f"model sequence_cnn: the batch has no {name!r}, it has "
                    f"{', '.join(sorted(batch))}; use collate=pad, or set model.field"
                )
        values, mask = batch[self.field], batch[f"{self.field}_mask"]
        if values.shape[1] == 0:  # all sequences are empty
            values = values.new_zeros((len(values), 1, *values.shape[2:]))
            mask = mask.new_zeros((len(values), 1))
        if self.num_tokens and values.device.type == "cpu":
            low, high = int(values.min()), int(values.max())
            if low < 0 or high >= self.num_tokens:
                raise ValueError(
                    f"model sequence_cnn: tokens from {low} to {high}, expected 0 to "
                    f"{self.num_tokens - 1}; set model.num_tokens={high + 1}"
                )
        return values, mask
