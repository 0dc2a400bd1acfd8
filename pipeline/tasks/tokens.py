"""Predict the next token of sequences, packed into rows or padded."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from penstock.core.registry import register
from penstock.core.sample import Batch
from penstock.pipeline.learning.outputs import logits_of, mean_over_valid
from penstock.pipeline.learning.segments import segments_of

if TYPE_CHECKING:
    import torch


@register("task", "tokens")
class NextToken:
    """The next token: cross-entropy within sequences, accuracy and perplexity.

    The loss of a sequence is the mean over its tokens but the first, and that of a batch the mean
    over its sequences: the same however they are packed, padded, or dealt to ranks. Accuracy and
    perplexity are over tokens.

    Args:
        field: The sequences in the batch.
    """

    def __init__(self, *, field: str = "tokens") -> None:
        self.field = field

    def losses(self, outputs: Any, batch: Batch) -> dict[str, torch.Tensor]:
        """``cross_entropy``, the mean over valid sequences; 0, with a gradient, if none is.

        Args:
            outputs: Logits, float [R, T, V], what is said at a token of the one behind it.
            batch: The field, integer [R, T], with ``<field>_segments`` of ``collate=packed``, or
                ``<field>_mask`` of ``collate=pad``; and ``valid`` bool [B].
        """
        from torch.nn import functional

        logits, targets, sequence = self._pairs(outputs, batch)
        count = len(batch[f"{self.field}_lengths"])
        by_token = functional.cross_entropy(logits.float(), targets, reduction="none")
        total = by_token.new_zeros(count).index_add(0, sequence, by_token)
        number = by_token.new_zeros(count).index_add(0, sequence, by_token.new_ones(len(sequence)))
        by_sequence = total / number.clamp(min=1)
        return {"cross_entropy": mean_over_valid(by_sequence, batch.get("valid"))}

    def metrics(self) -> Any:
        """``accuracy`` and ``perplexity`` over the tokens of valid sequences."""
        from torchmetrics import MeanMetric
        from torchmetrics.text import Perplexity

        from penstock.pipeline.learning.metrics import collected

        return collected(accuracy=MeanMetric(), perplexity=Perplexity())

    def update(self, metrics: Any, outputs: Any, batch: Batch) -> None:
        """Add the tokens of the valid sequences of a batch to `metrics`."""
        logits, targets, sequence = self._pairs(outputs, batch)
        if (valid := batch.get("valid")) is not None:
            logits, targets = logits[valid[sequence]], targets[valid[sequence]]
        if len(targets):
            metrics["accuracy"].update((logits.argmax(1) == targets).float())
            metrics["perplexity"].update(logits.float()[None], targets[None])

    def _pairs(self, outputs: Any, batch: Batch) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Logits [N, V], the tokens that they are about [N], and the rows of their samples [N]."""
        tokens, segments = batch[self.field], segments_of(batch, self.field)
        logits = logits_of(outputs, task="tokens", shape=("R", tokens.shape[1], "V"))
        same = (segments[:, 1:] == segments[:, :-1]) & (segments[:, 1:] > 0)
        return logits[:, :-1][same], tokens[:, 1:][same].long(), segments[:, 1:][same] - 1
