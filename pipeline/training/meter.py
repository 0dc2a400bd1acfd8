"""How fast training goes, what share of the time it waits for data, and where that was made."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import Any

from pipeline.device import DevicePrefetcher


@dataclass(slots=True)
class _Count:
    samples: int = 0
    seconds: float = 0.0
    wait_s: float = 0.0
    copy_s: float = 0.0


@dataclass(slots=True)
class Meter:
    """Counts samples and seconds of one use of a loader, and what lies between is left out.

    Attributes:
        batches: Whose waiting and copying is counted.
    """

    batches: DevicePrefetcher
    _total: _Count = field(default_factory=_Count)
    _lap: _Count = field(default_factory=_Count)
    _since: _Count = field(default_factory=_Count)
    _lap_stages: Any = None

    def start(self) -> None:
        """Time runs from here."""
        self._since = self._now()

    def step(self, samples: int) -> None:
        """A step over so many samples is done."""
        now, since = self._now(), self._since
        for count in (self._total, self._lap):
            count.samples += samples
            count.seconds += now.seconds - since.seconds
            count.wait_s += now.wait_s - since.wait_s
            count.copy_s += now.copy_s - since.copy_s
        self._since = now

    def lap(self) -> dict[str, float]:
        """Speed, waiting and microseconds a sample of each stage since the last lap."""
        figures = _figures(self._lap)
        stages = self._stages()
        if stages is not None:
            passed = stages if self._lap_stages is None else stages - self._lap_stages
            figures |= {f"{name}_us": value for name, value in passed.stages_us.items()}
            if passed.hit_rate is not None:
                figures["cache_hits"] = passed.hit_rate
        figures["copy_us"] = self._lap.copy_s / max(self._lap.samples, 1) * 1e6
        self._lap, self._lap_stages = _Count(), stages
        return figures

    def total(self) -> dict[str, float]:
        """Speed and waiting from the beginning."""
        return _figures(self._total)

    def summary(self) -> dict[str, float]:
        """Where the time went from the beginning; empty if no step was made.

        Returns:
            ``seconds``, ``samples_per_s``; ``data_wait`` and ``compute``, shares of the time that
            make up 1; ``copy``, the share in which the device copied, beside these;
            ``read_us``, ``decode_us``, ``transform_us`` and ``collate_us``, microseconds a sample
            in the loader's threads, where it times them; ``cache_hits``, the share of records
            that a cache had, where there is one; ``padding``, the share of ragged fields that is
            padding, and ``padding_of_random_order``, what it would be with random batches, where
            there are any and the index knows lengths; ``drawn_<name>``, a source's share of the
            samples of a mix.
        """
        if not self._total.samples:
            return {}
        figures = self.total()
        copied = self._total.copy_s / max(self._total.seconds, 1e-9)
        stages = self._stages()
        return {
            "seconds": self._total.seconds,
            **figures,
            "copy": copied,
            "compute": 1 - figures["data_wait"],
            **{f"{k}_us": v for k, v in (stages.stages_us if stages else {}).items()},
            **({"cache_hits": stages.hit_rate} if stages and stages.hit_rate is not None else {}),
            **self._padding(),
            **self._drawn(),
        }

    def _padding(self) -> dict[str, float]:
        stats: Any = getattr(self.batches.loader, "stats", None)
        if not getattr(stats, "padded", 0):
            return {}
        random = stats.padding_of_random_order
        figures = {"padding": stats.padding_overhead}
        return figures if random is None else {**figures, "padding_of_random_order": random}

    def _drawn(self) -> dict[str, float]:
        stats: Any = getattr(self.batches.loader, "stats", None)
        return {f"drawn_{name}": share for name, share in getattr(stats, "shares", {}).items()}

    def _now(self) -> _Count:
        return _Count(0, time.perf_counter(), self.batches.wait_s, self.batches.copy_s)

    def _stages(self) -> Any:
        """The loader's own times; None where it keeps none."""
        return getattr(getattr(self.batches.loader, "stats", None), "times", None)


def _figures(count: _Count) -> dict[str, float]:
    seconds = max(count.seconds, 1e-9)
    return {"samples_per_s": count.samples / seconds, "data_wait": count.wait_s / seconds}
