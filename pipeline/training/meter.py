"""How fast training goes, and what share of the time it waits for data."""

from __future__ import annotations

import time
from dataclasses import dataclass, field

from pipeline.device import DevicePrefetcher


@dataclass(slots=True)
class _Count:
    samples: int = 0
    seconds: float = 0.0
    wait_s: float = 0.0


@dataclass(slots=True)
class Meter:
    """Counts samples and seconds of training; validation and checkpoints are left out.

    Attributes:
        batches: Whose waiting is counted.
    """

    batches: DevicePrefetcher
    _total: _Count = field(default_factory=_Count)
    _lap: _Count = field(default_factory=_Count)
    _since_s: float = 0.0
    _waited_s: float = 0.0

    def start(self) -> None:
        """Time runs from here."""
        self._since_s, self._waited_s = time.perf_counter(), self.batches.wait_s

    def step(self, samples: int) -> None:
        """A step over so many samples is done."""
        now, waited = time.perf_counter(), self.batches.wait_s
        for count in (self._total, self._lap):
            count.samples += samples
            count.seconds += now - self._since_s
            count.wait_s += waited - self._waited_s
        self._since_s, self._waited_s = now, waited

    def lap(self) -> dict[str, float]:
        """Speed and waiting since the last lap."""
        figures = _figures(self._lap)
        self._lap = _Count()
        return figures

    def total(self) -> dict[str, float]:
        """Speed and waiting from the beginning."""
        return _figures(self._total)


def _figures(count: _Count) -> dict[str, float]:
    seconds = max(count.seconds, 1e-9)
    return {"samples_per_s": count.samples / seconds, "data_wait": count.wait_s / seconds}
