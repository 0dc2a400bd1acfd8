"""What changes a sample, or a whole batch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from datasets.sample import Batch, Sample

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


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


class RowTransform(BatchTransform, Protocol):
    """A batch transform that changes images and masks, each row by itself, and nothing else."""

    def prepare(self) -> None:
        """Get ready for `gathered`: called where the loader is made, before workers start."""

    def gathered(
        self,
        positions: NDArray[np.int64],
        epoch: int,
        array: NDArray[Any],
        rows: NDArray[np.int64],
        allocate: Callable[[int], Any] | None,
    ) -> NDArray[Any]:
        """What it makes of the images `rows`, int64 [n], of `array`, at `positions`, int64 [n]."""
