"""How long the stages of a batch took."""

from __future__ import annotations

from dataclasses import dataclass, fields


@dataclass(slots=True)
class StageTimes:
    """Seconds of the stages, in the thread that computed them, summed over samples.

    Attributes:
        read: Reading records from the storage.
        decode: Bytes to arrays, also where that waits for the crop to be drawn.
        transform: The augmentation, without the decoding that it waits for.
        collate: Samples to a batch.
    """

    read: float = 0.0
    decode: float = 0.0
    transform: float = 0.0
    collate: float = 0.0

    def add(self, other: StageTimes) -> None:
        """Add the times of another batch."""
        for each in fields(self):
            setattr(self, each.name, getattr(self, each.name) + getattr(other, each.name))

    @property
    def total(self) -> float:
        """Seconds of all stages together."""
        return self.read + self.decode + self.transform + self.collate
