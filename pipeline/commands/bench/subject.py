"""What is measured: a configuration's loader, its training step, and both together."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import count
from typing import Any

# Before torch: it sets how torch's threads wait.
from pipeline.training.job import prepare_torch  # isort: skip
from pipeline.build import build_loader, build_settings
from pipeline.build_transforms import build_device_transforms
from pipeline.commands.bench.training_step import TrainingStep
from pipeline.device import DevicePrefetcher
from pipeline.loader.stats import LoaderTimes
from pipeline.monitor.memory import used_bytes
from pipeline.training.distributed import local_device


@dataclass(frozen=True, slots=True)
class Round:
    """What one round of a measurement gave.

    Attributes:
        samples: Samples that passed.
        seconds: How long it took.
        times: Where the loader's and its consumer's time went.
    """

    samples: int
    seconds: float
    times: LoaderTimes = field(default_factory=LoaderTimes)

    @property
    def rate(self) -> float:
        """Samples a second."""
        return self.samples / max(self.seconds, 1e-9)


class Subject:
    """A configuration under measurement; its workers stay from round to round.

    Args:
        config: The plain config.
        split: The split to read.
        sampler: Replaces the configured one, if given.

    Attributes:
        first_batch_s: Seconds from the beginning to the first batch, workers started included.
        memory_bytes: What it added to the memory of this process and its children; None where
            the system does not say.
    """

    def __init__(self, config: dict[str, Any], split: Any, *, sampler: Any = None) -> None:
        self.config = config
        before = used_bytes()
        self._trainer = build_settings(config["trainer"])
        self.device = local_device(self._trainer.device)
        start = time.perf_counter()
        self.loader = build_loader(config, split, sampler=sampler, device=self.device)
        self._step: TrainingStep | None = None
        self._kept: Any = None
        self._transforms = build_device_transforms(config, split, self.device)
        self._epochs = count()
        batches = iter(self.loader)
        try:
            self._batch: Any = next(batches, None)
            if self._batch is None:
                raise ValueError(
                    f"bench: split {split} gave no batch; lower loader.batch_size "
                    f"({self.loader.batch_size}), or set loader.drop_last=false"
                )
            self.first_batch_s = time.perf_counter() - start
            after = used_bytes()
        except BaseException:
            self.close()
            raise
        finally:
            batches.close()  # type: ignore[attr-defined]
        self.memory_bytes = None if before is None or after is None else max(after - before, 0)

    @property
    def workers(self) -> int:
        """Number of workers."""
        return self.loader.settings.workers

    @property
    def step(self) -> TrainingStep:
        """The training step, made when it is first asked for."""
        if self._step is None:
            self._prepare()
            self._step = TrainingStep(self.config, self.loader, self._batch, self.device)
        return self._step

    @property
    def host_batch(self) -> Any:
        """A batch as the loader gives it."""
        return self._batch

    def loader_round(self, seconds: float) -> Round:
        """Take batches as fast as they come."""
        self._prepare()
        return self._round(self.loader, lambda batch: None, seconds, least=2)

    def model_round(self, seconds: float) -> Round:
        """Train on one batch again and again."""
        step = self.step
        self._prepare()
        if self._kept is None:
            self._kept = self._on_device(self._batch)
            step(self._kept)  # the first one allocates and compiles
        batch = self._kept
        samples, start = 0, time.perf_counter()
        while not samples or time.perf_counter() - start < seconds:
            step(batch)
            samples += batch["num_valid"]
        return Round(samples, time.perf_counter() - start)

    def training_round(self, seconds: float) -> Round:
        """Train on what the loader gives."""
        step = self.step
        self._prepare()
        return self._round(self.prefetcher(), step, seconds, least=1)

    def prefetcher(self) -> DevicePrefetcher:
        """The loader's batches on the device, as training gets them."""
        return DevicePrefetcher(self.loader, self.device, self._transforms)

    def close(self) -> None:
        """End the workers."""
        self.loader.close()

    def __enter__(self) -> Subject:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _prepare(self) -> None:
        prepare_torch(self._trainer, self.device)

    def _on_device(self, batch: Any) -> Any:
        """A batch as the training step takes it."""
        return next(iter(DevicePrefetcher(_Once(batch), self.device, self._transforms)))

    def _round(
        self, batches: Any, use: Callable[[Any], None], seconds: float, *, least: int
    ) -> Round:
        """Time some batches after those that fill the workers' queues."""
        # Workers begin at the same time, and so their first batches come at the same time.
        warm_up = 1 + max(1, self.workers)
        stream = self._endless(batches)
        stats = self.loader.stats
        try:
            began = time.perf_counter()
            for _ in range(warm_up):
                use(next(stream))
                if time.perf_counter() - began > seconds:  # with steps this slow nothing queues
                    break
            start, before = time.perf_counter(), stats.times
            while True:
                use(next(stream))
                now = time.perf_counter()
                passed = stats.times - before
                if now - start >= seconds and passed.batches >= least:
                    return Round(passed.samples, now - start, passed)
        finally:
            stream.close()  # type: ignore[attr-defined]

    def _endless(self, batches: Any) -> Iterator[Any]:
        """Epoch after epoch."""
        while True:
            batches.set_epoch(next(self._epochs))
            iterator: Any = iter(batches)
            try:
                yield from iterator
            finally:
                iterator.close()


class _Once:
    """One batch, as an iterable."""

    def __init__(self, batch: Any) -> None:
        self._batch = batch

    def __iter__(self) -> Iterator[Any]:
        return iter((self._batch,))

    def state_dict(self) -> dict[str, Any]:
        """Nothing to go on from."""
        return {}


Measurement = Callable[[float], Round]


def alternate(
    measurements: Sequence[Measurement], *, seconds: float, rounds: int
) -> Iterator[list[list[Round]]]:
    """Measure several things in turn, so that what else the machine does meets all of them.

    Args:
        measurements: Each takes the seconds of a round.
        seconds: Of each measurement, over all rounds.
        rounds: How often each is measured; every other time in the opposite order.

    Yields:
        After each round of each, the rounds of all so far; always the same lists.
    """
    results: list[list[Round]] = [[] for _ in measurements]
    for number in range(rounds):
        places = range(len(results))
        for place in places if number % 2 == 0 else reversed(places):
            results[place].append(measurements[place](seconds / rounds))
            yield results
