"""The batch-hard triplet loss."""

from __future__ import annotations

import torch
from torch.nn import functional

_NEVER = 1e6  # farther than any point lies


def batch_hard(
    features: torch.Tensor,
    identities: torch.Tensor,
    valid: torch.Tensor,
    *,
    margin: float | None,
) -> torch.Tensor:
    """For each row, how much nearer its farthest equal is to be than its nearest other.

    Hermans, Beyer and Leibe, "In Defense of the Triplet Loss for Person Re-Identification",
    arXiv:1703.07737, section 2: batch hard, with Euclidean distances.

    Args:
        features: float [B, D].
        identities: int64 [B].
        valid: bool [B]; a row that is not is in no triplet.
        margin: By how much; None: the soft margin, log(1 + exp(.)).

    Returns:
        float32 [B]; 0 for a row that is not valid, or that lacks an equal or another.
    """
    with torch.autocast(features.device.type, enabled=False):
        # Taken out and not weighed with 0: what is infinite in padding must not turn into a NaN.
        rows = features.float().where(valid[:, None], features.new_zeros((), dtype=torch.float32))
        squares = rows.square().sum(1)
        distances = squares[:, None] + squares[None] - 2 * (rows @ rows.T)
        # The root has no slope at 0, where a row is compared with its like.
        distances = distances.clamp(min=1e-12).sqrt()
    both = valid[:, None] & valid[None]
    alike = identities[:, None] == identities[None]
    itself = torch.eye(len(rows), dtype=torch.bool, device=rows.device)
    equal, other = both & alike & ~itself, both & ~alike
    farthest = distances.masked_fill(~equal, -_NEVER).amax(1)
    nearest = distances.masked_fill(~other, _NEVER).amin(1)
    excess = farthest - nearest
    losses = functional.softplus(excess) if margin is None else functional.relu(excess + margin)
    return losses.where(equal.any(1) & other.any(1), losses.new_zeros(()))
