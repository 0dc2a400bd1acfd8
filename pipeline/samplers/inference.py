"""All records once, in order, to be predicted."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

import numpy as np
from numpy.typing import NDArray

from pipeline.registry import register

if TYPE_CHECKING:
    from datasets.protocols import Index


@register("sampler", "inference")
class InferenceSampler:
    """Every record once, in the order of the index, the last ones too.

    For a model's outputs on the training part; validation is read so anyway. What
    `pipeline.training.gathering.gather_in_order` puts together is in this order.

    Args:
        n: Number of records.
        index: Metadata of the records, not used.
        seed: The run's seed, not used.

    Attributes:
        tail: The last batch is kept whatever `loader.drop_last` says.
    """

    tail: Literal["keep"] = "keep"

    def __init__(self, n: int, index: Index | None = None, seed: int = 0) -> None:
        self._n = n

    def __len__(self) -> int:
        return self._n

    def indices(self, epoch: int, start: int, stop: int) -> NDArray[np.int64]:
        """Record indices at positions ``start .. stop - 1``, int64 [stop - start]."""
        return np.arange(start, stop, dtype=np.int64)
