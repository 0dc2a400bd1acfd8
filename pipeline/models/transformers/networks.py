"""Feed a classifier of transformers with the tokens of a batch."""

from __future__ import annotations

import torch
from torch import nn

from penstock.core.sample import Batch
from penstock.pipeline.learning.networks import refusing


class TokenClassifier(nn.Module):
    """A classifier of sequences, called with tokens and what of them is no padding.

    Args:
        classifier: Takes ``input_ids`` and ``attention_mask``.
        field: The sequence in the batch, padded by ``collate=pad``.
        num_tokens: Tokens are 0 to this less one.
    """

    def __init__(self, classifier: nn.Module, *, field: str, num_tokens: int) -> None:
        super().__init__()
        self.classifier = classifier
        self._field = field
        self._num_tokens = num_tokens

    def forward(self, batch: Batch) -> torch.Tensor:
        """Logits, float [B, num_classes].

        Args:
            batch: The field, integer [B, T], and ``<field>_mask``, bool [B, T].

        Raises:
            ValueError: The batch lacks them, or a token is outside of the vocabulary.
        """
        for name in (self._field, f"{self._field}_mask"):
            if name not in batch:
                raise ValueError(
                    f"model transformers: the batch has no {name!r}, it has "
                    f"{', '.join(sorted(batch))}; use task=sequence, or set model.field"
                )
        tokens, mask = batch[self._field].long(), batch[f"{self._field}_mask"].long()
        if tokens.device.type == "cpu" and tokens.numel() and int(tokens.max()) >= self._num_tokens:
            raise ValueError(
                f"model transformers: there is a token {int(tokens.max())}, expected 0 to "
                f"{self._num_tokens - 1}; take the vocabulary of this model, or without its "
                f"weights set model.args={{vocab_size: {int(tokens.max()) + 1}}}"
            )
        remedy = "cut sequences by augment.max_length, or set model.args"
        what = "model transformers"
        with refusing(self.classifier, self._field, tokens, what=what, remedy=remedy):
            logits: torch.Tensor = self.classifier(input_ids=tokens, attention_mask=mask).logits
        return logits
