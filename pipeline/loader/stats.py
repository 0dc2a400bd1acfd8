"""Counts and times of the batches that a loader has handed out."""

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
"""A consumer that waits for a smaller share of its time is the limit itself."""


class LoaderTimes(NamedTuple):
    """Times of some batches by stage; the difference of two is of the batches between.

    Attributes:
        batches: Batches handed to the consumer.
        samples: Valid rows in them.
        read: Seconds of reading records, in the threads that did it, summed over these.
        decode: Seconds of decoding, in the same way.
        transform: Seconds of augmenting, in the same way.
        collate: Seconds of putting samples together, in the same way.
        wait: Seconds that the consumer waited for the loader.
        copy: Seconds that the device spent on copies of batches, beside all the others.
        consumer: Seconds that the consumer took for itself, between a batch and its asking for
            the next one.
        hits: Records that the data set's cache had.
        misses: Records that it had not.
        damaged: Entries of the cache that were damaged, dropped, and read from the data again.
        requests: Requests to servers, of data behind a URL.
        fetched_bytes: Bytes from them.
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
        """Share of the consumer's time that it waited, 0 to 1."""
        return self.wait / max(self.wait + self.consumer, 1e-9)

    @property
    def busy(self) -> float:
        """Seconds that all stages took, summed over the threads that did them."""
        return self.read + self.decode + self.transform + self.collate

    @property
    def stages_us(self) -> dict[str, float]:
        """Microseconds a sample of each stage; empty where no stage was timed."""
        if not self.samples or not any(getattr(self, name) for name in STAGES):
            return {}
        return {name: getattr(self, name) / self.samples * 1e6 for name in STAGES}

    @property
    def hit_rate(self) -> float | None:
        """Share of the records read that the cache had, 0 to 1; None: without a cache."""
        lookups = self.hits + self.misses
        return self.hits / lookups if lookups else None

    def as_dict(self) -> dict[str, float]:
        """The attributes, ``wait_share``, and ``<stage>_us`` and ``<stage>_ms_per_batch``.

        Where there is a cache, ``hit_rate`` too.
        """
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
    """Name the one thing that training goes no faster than.

    Args:
        wait_share: Share of the consumer's time that it waited, 0 to 1.
        stages_us: Microseconds a sample of each stage; empty where no stage was timed.
    """
    if wait_share < _WAITS:
        return "the model"
    if not stages_us:
        return "the loader"
    slowest = max(stages_us, key=lambda name: stages_us[name])
    share = stages_us[slowest] / sum(stages_us.values())
    return f"{_DOING[slowest]}, {share:.0%} of the loader's work"


def padding_text(share: float) -> str:
    """Share of padding, 0 to 1, in words."""
    return f"{share:.1%} of the elements"


def cut_text(texts: int, tokens: int) -> str:
    """Describe how many tokens were cut from how many texts."""
    return f"{tokens:,} tokens of {texts:,} text{'s' if texts != 1 else ''}"


def sources_text(shares: Mapping[str, float]) -> str:
    """Shares of the samples by source, 0 to 1, in words."""
    return ", ".join(f"{share:.1%} {name}" for name, share in shares.items())


@dataclass(slots=True)
class LoaderStats:
    """Counts and times of what this rank's consumer was handed, since the loader was made.

    Attributes:
        batches: Batches.
        samples: Valid rows in them.
        bad_samples: Bad samples met, one for every position.
        real: Elements of ragged fields that are data.
        padded: Elements of ragged fields with their padding.
        cut_texts: Valid rows that a transform has shortened.
        cut_tokens: Elements that were cut from these rows.
        copy_s: Seconds that the device spent on copies; who has it copy adds them.
        drawn: Valid rows by the name of their source, where several data sets are mixed.
        workers: Tells how the workers do at this moment; None: the engine does not.
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
        """Share of the elements of ragged fields that is padding, 0 to 1."""
        return 1 - self.real / self.padded if self.padded else 0.0

    @property
    def shares(self) -> dict[str, float]:
        """Each source's share of the samples of a mix, 0 to 1, by name."""
        count = max(sum(self.drawn.values()), 1)
        return {name: drawn / count for name, drawn in self.drawn.items()}

    @property
    def times(self) -> LoaderTimes:
        """Times by stage since the loader was made.

        Of a part of it: ``before = loader.stats.times``, later ``loader.stats.times - before``.
        """
        stages = self._stages
        return LoaderTimes(
            self.batches, self.samples, stages.read, stages.decode, stages.transform,
            stages.collate, self._wait_s, self.copy_s, self._consumer_s,
            stages.hits, stages.misses, stages.damaged, stages.requests, stages.fetched_bytes,
        )  # fmt: skip

    @property
    def recent(self) -> LoaderTimes:
        """Times by stage of the last 100 batches."""
        return self._marks[-1] - self._marks[0]

    @property
    def limit(self) -> str:
        """Name what limits training now; "" within the first 100 batches."""
        if self.batches <= RECENT_BATCHES:
            return ""
        return limit_text(self.recent.wait_share, self.recent.stages_us)

    def as_dict(self) -> dict[str, float]:
        """The counts, and what `times` holds."""
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
        """An iteration begins: the consumer has asked for its first batch."""
        self._since_s = time.perf_counter()

    def add(self, delivery: Delivery) -> None:
        """Count a batch, which has just come."""
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
        if "source" not in batch:  # left out by a collate
            return
        sources = np.asarray(batch["source"])[np.asarray(batch["valid"])]
        counts = np.bincount(sources, minlength=len(self.drawn)).tolist()
        for name, count in zip(self.drawn, counts, strict=True):
            self.drawn[name] += count

    def asked(self) -> None:
        """The consumer asks for the next batch; what passed since the last one was its own."""
        now = time.perf_counter()
        self._consumer_s += now - self._since_s
        self._since_s = now
