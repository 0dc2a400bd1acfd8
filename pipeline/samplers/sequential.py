"""Records in the order in which they lie."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from pipeline.registry import register

if TYPE_CHECKING:
    from datasets.protocols import Index


@register("sampler", "sequential")
class SequentialSampler:
    """Every record once, in the order of the index.

    Args:
        n: Number of records.
        index: Metadata of the records, not used.
        seed: The run's seed, not used.
    """

    def __init__(self, n: int, index: Index | None = None, seed: int = 0) -> None:
        self._n = n

    def __len__(self) -> int:
        return self._n

    def indices(self, epoch: int, start: int, stop: int) -> NDArray[np.int64]:
        """Record indices at positions ``start .. stop - 1``, int64 [stop - start]."""
        return np.arange(start, stop, dtype=np.int64)
