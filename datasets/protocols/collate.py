"""What puts samples together into a batch."""

from __future__ import annotations

from typing import Protocol

from datasets.sample import Batch, Sample


class Collate(Protocol):
    """Puts samples together into a batch; images stay uint8 [B, H, W, C]."""

    def __call__(self, samples: list[Sample]) -> Batch: ...
