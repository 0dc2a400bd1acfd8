"""Counts and times of the batches that a loader has delivered."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields

import numpy as np

from penstock.pipeline.loader.contract import BatchStats, Delivery, WorkerFigures

RECENT_BATCHES = 100
STAGES = ("read", "decode", "transform", "collate")
_DOING = dict(zip(STAGES, ("reading", "decoding", "augmenting", "collating"), strict=True))
_WAITS = 0.1
"""A consumer that waits for a smaller share of its time is limited by the model."""


@dataclass(slots=True)
class LoaderTimes(BatchStats):
    """Counts and times of batches; subtract two values for the batches between them.

    Stage times are seconds, summed over the threads that did the work.

    Attributes:
        batches: Number of batches.
        wait: Seconds that the consumer waited for the loader.
        copy: Seconds that the device copied batches, in parallel with the other stages.
        consumer: Seconds that the consumer spent between two batches.
    """

    batches: int = 0
    wait: float = 0.0
    copy: float = 0.0
    consumer: float = 0.0

    def __sub__(self, earlier: LoaderTimes) -> LoaderTimes:
        names = [each.name for each in fields(LoaderTimes)]
        return LoaderTimes(**{n: getattr(self, n) - getattr(earlier, n) for n in names})

    @property
    def wait_share(self) -> float:
        """Share of the consumer's time spent waiting, 0 to 1."""
        return self.wait / max(self.wait + self.consumer, 1e-9)

    @property
    def stages_us(self) -> dict[str, float]:
        """Microseconds per sample of each stage; empty if no stage was timed."""
        if not self.samples or not self.total:
            return {}
        return {name: getattr(self, name) / self.samples * 1e6 for name in STAGES}

    @property
    def hit_rate(self) -> float | None:
        """Share of records found in the cache, 0 to 1; None without a cache."""
        lookups = self.hits + self.misses
        return self.hits / lookups if lookups else None

    def __str__(self) -> str:
        lines = [f"{self.samples:,} samples in {self.batches:,} batches"]
        for name in (*STAGES, "wait", "copy", "consumer"):
            each_us = getattr(self, name) / max(self.samples, 1) * 1e6
            lines.append(f"{name:<10}{each_us:>12,.1f} us a sample")
        lines.append(f"waiting for data: {self.wait_share:.0%} of the consumer's time")
        if self.hit_rate is not None:
            damaged = f", {self.damaged:,} damaged" if self.damaged else ""
            lines.append(f"cache: {self.hit_rate:.0%} of {self.hits + self.misses:,} hit{damaged}")
        if self.requests:
            fetched_mb = self.fetched_bytes / 1e6
            lines.append(f"fetched: {fetched_mb:,.1f} MB in {self.requests:,} requests")
        return "\n".join(lines)


def limit_text(wait_share: float, stages_us: Mapping[str, float]) -> str:
    """Name the limit of training speed, from the values of `LoaderTimes`."""
    if wait_share < _WAITS:
        return "the model"
    if not stages_us:
        return "the loader"
    slowest = max(stages_us, key=lambda name: stages_us[name])
    share = stages_us[slowest] / sum(stages_us.values())
    return f"{_DOING[slowest]}, {share:.0%} of the loader's work"


def padding_text(share: float) -> str:
    """Format a share of padding, 0 to 1."""
    return f"{share:.1%} of the elements"


def cut_text(texts: int, tokens: int) -> str:
    """Format the number of truncated tokens and texts."""
    return f"{tokens:,} tokens of {texts:,} text{'s' if texts != 1 else ''}"


def sources_text(shares: Mapping[str, float]) -> str:
    """Format each source's share of samples, 0 to 1."""
    return ", ".join(f"{share:.1%} {name}" for name, share in shares.items())


@dataclass(slots=True)
class LoaderStats(LoaderTimes):
    """Counts and times of this rank's batches since the loader was made.

    Attributes:
        bad_samples: Number of bad samples.
        drawn: Valid rows by source, for a mix of datasets.
        workers: Return the current state of the workers; None if the engine does not report it.
    """

    bad_samples: int = 0
    drawn: dict[str, int] = field(default_factory=dict)
    workers: Callable[[], WorkerFigures] | None = None
    _since_s: float = 0.0
    _marks: deque[LoaderTimes] = field(
        default_factory=lambda: deque([LoaderTimes()], maxlen=RECENT_BATCHES + 1)
    )

    @property
    def padding_overhead(self) -> float:
        """Share of padding in ragged fields, 0 to 1."""
        return 1 - self.real / self.padded if self.padded else 0.0

    @property
    def shares(self) -> dict[str, float]:
        """Share of samples of each source in a mix, 0 to 1."""
        count = max(sum(self.drawn.values()), 1)
        return {name: drawn / count for name, drawn in self.drawn.items()}

    @property
    def times(self) -> LoaderTimes:
        """Times by stage since the loader was made; subtract an earlier value for an interval."""
        return self - LoaderTimes()

    @property
    def recent(self) -> LoaderTimes:
        """Times by stage over the last 100 batches."""
        return self._marks[-1] - self._marks[0]

    @property
    def limit(self) -> str:
        """The limit of training speed now; empty for the first 100 batches."""
        if self.batches <= RECENT_BATCHES:
            return ""
        return limit_text(self.recent.wait_share, self.recent.stages_us)

    def __str__(self) -> str:
        lines = [LoaderTimes.__str__(self)]
        if self.padded:
            lines.append(f"padding: {padding_text(self.padding_overhead)}")
        if self.cut_tokens:
            lines.append(f"cut: {cut_text(self.cut_texts, self.cut_tokens)}")
        if self.drawn:
            lines.append(f"sources: {sources_text(self.shares)}")
        if self.workers is not None and (restarts := self.workers().restarts):
            lines.append(f"workers: {restarts:,} replaced, which died or hung")
        return "\n".join(lines)

    def begin(self) -> None:
        """Start timing an iteration, when the consumer requests its first batch."""
        self._since_s = time.perf_counter()

    def count_in(self, delivery: Delivery) -> None:
        """Count a batch that has just arrived."""
        now = time.perf_counter()
        self.wait += now - self._since_s
        self._since_s = now
        self.batches += delivery.batch is not None
        self.bad_samples += len(delivery.faults)
        self.add(delivery.stats)
        batch = delivery.batch
        if self.drawn and batch is not None and "source" in batch:  # kept by the collate
            sources = np.asarray(batch["source"])[np.asarray(batch["valid"])]
            counts = np.bincount(sources, minlength=len(self.drawn)).tolist()
            for name, count in zip(self.drawn, counts, strict=True):
                self.drawn[name] += count
        self._marks.append(self.times)

    def asked(self) -> None:
        """End the consumer's time, when it requests the next batch."""
        now = time.perf_counter()
        self.consumer += now - self._since_s
        self._since_s = now
