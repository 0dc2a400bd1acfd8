"""What changes a sample, or a whole batch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

from datasets.sample import Batch, Sample

if TYPE_CHECKING:
    import numpy as np


class Transform(Protocol):
    """Changes one sample; every random draw comes from `rng`.

    One without anything to do has an attribute ``unchanged`` that is True.
    """

    def __call__(self, sample: Sample, rng: np.random.Generator) -> Sample: ...


class PartnerTransform(Protocol):
    """A step of an augmentation stack that needs other samples of the epoch.

    They are decoded and nothing else, have no ``position``, and are of any size.
    """

    def partners(self, rng: np.random.Generator) -> int:
        """How many it needs this time; 0 leaves the sample as it is. For a draw of its own."""

    def __call__(
        self, sample: Sample, rng: np.random.Generator, partners: Sequence[Sample]
    ) -> Sample: ...


class BatchTransform(Protocol):
    """Changes a whole batch where the batch is (the device); returns the batch."""

    def __call__(self, batch: Batch) -> Batch: ...
