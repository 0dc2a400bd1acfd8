"""What a loader has handed out so far."""

from __future__ import annotations

from dataclasses import dataclass

from pipeline.loader.contract import Delivery


@dataclass(slots=True)
class LoaderStats:
    """Counts of what this rank's consumer was handed, since the loader was made.

    Attributes:
        batches: Batches.
        samples: Valid rows in them.
        bad_samples: Bad samples met, one for every position.
        real: Elements of ragged fields that are data.
        padded: Elements of ragged fields with their padding.
    """

    batches: int = 0
    samples: int = 0
    bad_samples: int = 0
    real: int = 0
    padded: int = 0

    @property
    def padding_overhead(self) -> float:
        """Share of the elements of ragged fields that is padding, 0 to 1."""
        return 1 - self.real / self.padded if self.padded else 0.0

    def add(self, delivery: Delivery) -> None:
        """Count a batch."""
        self.batches += delivery.batch is not None
        self.samples += delivery.samples
        self.bad_samples += len(delivery.faults)
        self.real += delivery.real
        self.padded += delivery.padded
