"""The share of the variance that predictions explain, also where there is too little data."""

from __future__ import annotations

import torch
from torchmetrics import R2Score


class ExplainedVariance(R2Score):
    """R2 as `torchmetrics.R2Score` has it; NaN over fewer than two samples."""

    def compute(self) -> torch.Tensor:
        """The score over all ranks."""
        if self.total < 2:
            return torch.full((), float("nan"), device=self.total.device)
        return super().compute()
