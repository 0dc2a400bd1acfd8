"""Tell sequences that share a row of a batch from one another."""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.core.sample import Batch

if TYPE_CHECKING:
    import torch


def segments_of(batch: Batch, field: str) -> torch.Tensor:
    """Tell which sequence each token of a batch is of: 1 + its sample's row, 0: of none.

    Returns:
        int64 [R, T].

    Raises:
        ValueError: The batch says neither that nor where there is data.
    """
    if (segments := batch.get(f"{field}_segments")) is not None:
        return segments
    if (mask := batch.get(f"{field}_mask")) is None:
        raise ValueError(
            f"the batch has no {field}_segments and no {field}_mask, it has "
            f"{', '.join(sorted(batch))}; use collate=packed or collate=pad"
        )
    import torch

    return mask * torch.arange(1, len(mask) + 1, device=mask.device)[:, None]
