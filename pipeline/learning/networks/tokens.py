"""Say the next token of a sequence."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional

from penstock.core.sample import Batch
from penstock.pipeline.learning.segments import segments_of


class TokenModel(nn.Module):
    """A small transformer that says the next token; sequences in one row do not see each other.

    Args:
        num_tokens: Tokens are 0 to this less one.
        field: The sequences in the batch.
        max_length: The longest sequence.
        width: Channels, a multiple of 4.
        depth: Blocks.
    """

    def __init__(
        self, *, num_tokens: int, field: str, max_length: int, width: int, depth: int
    ) -> None:
        super().__init__()
        self.field = field
        self.tokens = nn.Embedding(num_tokens, width)
        self.places = nn.Embedding(max_length, width)
        self.blocks = nn.ModuleList(_TokenBlock(width) for _ in range(depth))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, num_tokens)

    def forward(self, batch: Batch) -> torch.Tensor:
        """Logits, float [R, T, num_tokens].

        Args:
            batch: What ``collate=packed`` or ``collate=pad`` makes of the field, integer [R, T].

        Raises:
            ValueError: The batch lacks it, a token is outside of the vocabulary, or a sequence too
                long.
        """
        segments, tokens = segments_of(batch, self.field), batch[self.field].long()
        places = batch.get(f"{self.field}_positions")
        if places is None:
            places = torch.arange(tokens.shape[1], device=tokens.device).expand_as(tokens)
        if tokens.device.type == "cpu":
            self._refuse(tokens, places)
        own = segments[:, :, None] == segments[:, None, :]
        seen = own.tril()[:, None]  # filled up places see each other, and are of no account
        hidden = self.tokens(tokens) + self.places(places)
        for block in self.blocks:
            hidden = block(hidden, seen)
        return self.head(self.norm(hidden))

    def _refuse(self, tokens: torch.Tensor, places: torch.Tensor) -> None:
        low, high, longest = int(tokens.min()), int(tokens.max()), int(places.max()) + 1
        if low < 0 or high >= self.tokens.num_embeddings:
            raise ValueError(
                f"model token_model: tokens from {low} to {high}, expected 0 to "
                f"{self.tokens.num_embeddings - 1}; set model.num_tokens={high + 1}"
            )
        if longest > self.places.num_embeddings:
            raise ValueError(
                f"model token_model: sequences of {longest} tokens, expected up to "
                f"{self.places.num_embeddings}; set model.max_length={longest}"
            )


class _TokenBlock(nn.Module):
    """Attention of 4 heads and two layers, each of what is normalised and added."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(2))
        self.inward, self.outward = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.layers = nn.Sequential(
            nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)
        )

    def forward(self, hidden: torch.Tensor, seen: torch.Tensor) -> torch.Tensor:
        """Change float [R, T, width]; `seen`, bool [R, 1, T, T]: what each place looks at."""
        heads = self.inward(self.norms[0](hidden)).unflatten(2, (3, 4, -1)).permute(2, 0, 3, 1, 4)
        query, key, value = heads.unbind()
        mixed = functional.scaled_dot_product_attention(query, key, value, attn_mask=seen)
        hidden = hidden + self.outward(mixed.transpose(1, 2).flatten(2))
        return hidden + self.layers(self.norms[1](hidden))
