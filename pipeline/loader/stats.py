"""Counts and times of the batches that a loader has delivered."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from penstock.core.sample import Batch
from penstock.core.stage_times import StageTimes
from penstock.pipeline.loader.contract import Delivery, WorkerFigures

RECENT_BATCHES = 100
STAGES = ("read", "decode", "transform", "collate")
_DOING = dict(zip(STAGES, ("reading", "decoding", "augmenting", "collating"), strict=True))
_WAITS = 0.1
"""A consumer that waits for a smaller share of its time is limited by the model."""


class LoaderTimes(NamedTuple):
    """Times of a run of batches by stage; subtract two for the batches between them.

    Stage times are seconds, summed over the threads that did the work.

    Attributes:
        samples: Valid rows in the batches.
        wait: Seconds that the consumer waited for the loader.
        copy: Seconds that the device copied batches, in parallel with the other stages.
        consumer: Seconds that the consumer spent between two batches.
        hits: Records found in the dataset's cache.
        damaged: Damaged cache entries, dropped and read again.
        requests: Requests to servers, which returned `fetched_bytes`.
    """

    batches: int = 0
    samples: int = 0
    read: float = 0.0
    decode: float = 0.0
    transform: float = 0.0
    collate: float = 0.0
    wait: float = 0.0
    copy: float = 0.0
    consumer: float = 0.0
    hits: int = 0
    misses: int = 0
    damaged: int = 0
    requests: int = 0
    fetched_bytes: int = 0

    def __sub__(self, earlier: LoaderTimes) -> LoaderTimes:
        differences = (a - b for a, b in zip(self, earlier, strict=True))
        return LoaderTimes(*differences)  # type: ignore[arg-type]

    @property
    def wait_share(self) -> float:
        """Share of the consumer's time spent waiting, 0 to 1."""
        return self.wait / max(self.wait + self.consumer, 1e-9)

    @property
    def busy(self) -> float:
        """Seconds in all stages, summed over threads."""
        return self.read + self.decode + self.transform + self.collate

    @property
    def stages_us(self) -> dict[str, float]:
        """Microseconds per sample of each stage; empty if no stage was timed."""
        if not self.samples or not any(getattr(self, name) for name in STAGES):
            return {}
        return {name: getattr(self, name) / self.samples * 1e6 for name in STAGES}

    @property
    def hit_rate(self) -> float | None:
        """Share of records found in the cache, 0 to 1; None without a cache."""
        lookups = self.hits + self.misses
        return self.hits / lookups if lookups else None

    def as_dict(self) -> dict[str, float]:
        """Return the attributes and rates: ``<stage>_us`` per sample, ``<stage>_ms_per_batch``."""
        figures: dict[str, float] = {**self._asdict(), "wait_share": self.wait_share}
        if self.hit_rate is not None:
            figures["hit_rate"] = self.hit_rate
        for name in (*STAGES, "wait", "copy", "consumer"):
            seconds = getattr(self, name)
            figures[f"{name}_us"] = seconds / max(self.samples, 1) * 1e6
            figures[f"{name}_ms_per_batch"] = seconds / max(self.batches, 1) * 1e3
        return figures

    def __str__(self) -> str:
        figures = self.as_dict()
        lines = [f"{self.samples:,} samples in {self.batches:,} batches"]
        lines.append(f"{'':<10}{'us a sample':>12}{'ms a batch':>12}{'seconds':>10}")
        for name in (*STAGES, "wait", "copy", "consumer"):
            each, batch = figures[f"{name}_us"], figures[f"{name}_ms_per_batch"]
            lines.append(f"{name:<10}{each:>12,.1f}{batch:>12,.2f}{getattr(self, name):>10,.2f}")
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
class LoaderStats:
    """Counts and times of this rank's batches since the loader was made.

    Attributes:
        samples: Valid rows in the batches.
        real: Elements of ragged fields, without padding.
        padded: Elements of ragged fields, with padding.
        cut_texts: Valid rows that a transform truncated, by `cut_tokens` elements.
        copy_s: Seconds that the device spent on copies; the code that copies adds them.
        drawn: Valid rows by source, for a mix of datasets.
        workers: Return the current state of the workers; None if the engine does not report it.
    """

    batches: int = 0
    samples: int = 0
    bad_samples: int = 0
    real: int = 0
    padded: int = 0
    cut_texts: int = 0
    cut_tokens: int = 0
    copy_s: float = 0.0
    drawn: dict[str, int] = field(default_factory=dict)
    workers: Callable[[], WorkerFigures] | None = None
    _stages: StageTimes = field(default_factory=StageTimes)
    _wait_s: float = 0.0
    _consumer_s: float = 0.0
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
        stages = self._stages
        return LoaderTimes(
            self.batches, self.samples, stages.read, stages.decode, stages.transform,
            stages.collate, self._wait_s, self.copy_s, self._consumer_s,
            stages.hits, stages.misses, stages.damaged, stages.requests, stages.fetched_bytes,
        )  # fmt: skip

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

    def as_dict(self) -> dict[str, float]:
        """Return the counts and the items of `times`."""
        counts = {"bad_samples": self.bad_samples, "padding_overhead": self.padding_overhead}
        counts |= {"cut_texts": self.cut_texts, "cut_tokens": self.cut_tokens}
        if self.workers is not None:
            counts |= {"ready": self.workers().ready, "restarts": self.workers().restarts}
        counts |= {f"drawn_{name}": drawn for name, drawn in self.drawn.items()}
        return {**self.times.as_dict(), **counts}

    def __str__(self) -> str:
        lines = [str(self.times)]
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

    def add(self, delivery: Delivery) -> None:
        """Count a batch that has just arrived."""
        now = time.perf_counter()
        self._wait_s += now - self._since_s
        self._since_s = now
        self.batches += delivery.batch is not None
        self.samples += delivery.samples
        self.bad_samples += len(delivery.faults)
        self.real += delivery.real
        self.padded += delivery.padded
        self.cut_texts += delivery.cut_texts
        self.cut_tokens += delivery.cut_tokens
        if self.drawn and delivery.batch is not None:
            self._add_drawn(delivery.batch)
        self._stages.add(delivery.times)
        self._marks.append(self.times)

    def _add_drawn(self, batch: Batch) -> None:
        if "source" not in batch:  # dropped by the collate
            return
        sources = np.asarray(batch["source"])[np.asarray(batch["valid"])]
        counts = np.bincount(sources, minlength=len(self.drawn)).tolist()
        for name, count in zip(self.drawn, counts, strict=True):
            self.drawn[name] += count

    def asked(self) -> None:
        """End the consumer's time, when it requests the next batch."""
        now = time.perf_counter()
        self._consumer_s += now - self._since_s
        self._since_s = now
