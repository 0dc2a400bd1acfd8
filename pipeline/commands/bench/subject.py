"""Open a configuration to be measured: its loader, its training step, a trace of both."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import count
from pathlib import Path
from typing import Any

import torch
from torch.profiler import profile, record_function

from penstock.pipeline.build import build_device_transforms, build_loader, build_settings
from penstock.pipeline.commands.bench.memory import used_bytes
from penstock.pipeline.learning.building import build_model, build_optimizer, build_task
from penstock.pipeline.learning.fields import task_field
from penstock.pipeline.learning.losses import total_loss
from penstock.pipeline.loader.device.queue import DeviceQueue
from penstock.pipeline.loader.stats import LoaderTimes
from penstock.pipeline.training.distributed.world import local_device
from penstock.pipeline.training.job import prepare_torch
from penstock.pipeline.training.loop import precision_of

_MADE_UP_CLASSES = 10
_TRACED_STEPS, _TRACED_S = 10, 5.0


class TrainingStep:
    """Forward, backward and update of a model that is made for this and thrown away.

    Args:
        config: The plain config.
        loader: Knows the classes.
        batch: A batch of it; without a ``label``, made-up ones are taken, which cost the same.
        device: Where it computes.

    Attributes:
        made_up: Whether labels are made up.
    """

    def __init__(self, config: Any, loader: Any, batch: Any, device: torch.device) -> None:
        settings = build_settings(config["trainer"])
        class_names = loader.classes_of(task_field(config))
        self.made_up = not class_names and task_field(config) == "label"
        self._no_label = "label" not in batch
        if class_names is None and not self._no_label:
            num_classes = int(batch["label"].max()) + 1
        else:
            made_up = _MADE_UP_CLASSES if task_field(config) == "label" else 0
            num_classes = len(class_names or ()) or made_up
        known = {"table": loader.table, "classes_of": loader.classes_of}
        layout = torch.channels_last if settings.channels_last else torch.preserve_format
        model = build_model(config, num_classes, **known)
        self._model = model.to(device=device, memory_format=layout).train()  # type: ignore[call-overload]
        self._optimizer = build_optimizer(config, self._model)
        self._task = build_task(config, num_classes, class_names, **known)
        self._scaler = torch.amp.GradScaler(device.type, enabled=settings.amp == "fp16")
        self._precision = precision_of(settings, device)
        self._device = device

    def __call__(self, batch: Any) -> None:
        """Train on one batch, and wait for the device to be done."""
        if self._no_label:
            rows = len(batch["valid"])
            batch = {**batch, "label": torch.zeros(rows, dtype=torch.int64, device=self._device)}
        with self._precision():
            loss = total_loss(self._task, self._model(batch), batch)
        self._scaler.scale(loss).backward()
        self._scaler.step(self._optimizer)
        self._scaler.update()
        self._optimizer.zero_grad(set_to_none=True)
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)


@dataclass(frozen=True, slots=True)
class Round:
    """One round of a measurement.

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
        batch: The first batch, as the loader gives it.
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
        self._transforms = build_device_transforms(config, split, self.device)
        self._epochs = count()
        batches = iter(self.loader)
        try:
            self.batch: Any = next(batches, None)
            if self.batch is None:
                raise ValueError(
                    f"bench: split {split} gave no batch; lower loader.batch_size "
                    f"({self.loader.batch_size}), or set loader.drop_last=false"
                )
            self.first_batch_s = time.perf_counter() - start
            after = used_bytes()
        except BaseException:
            self.loader.close()
            raise
        finally:
            batches.close()  # type: ignore[attr-defined]
        self.memory_bytes = None if before is None or after is None else max(after - before, 0)

    @property
    def workers(self) -> int:
        """Number of workers."""
        return self.loader.settings.workers

    @cached_property
    def step(self) -> TrainingStep:
        """The training step, made when it is first asked for."""
        prepare_torch(self._trainer, self.device)
        return TrainingStep(self.config, self.loader, self.batch, self.device)

    @cached_property
    def _kept(self) -> Any:
        """A batch as the step takes it, which has been used: the first use allocates."""
        once = DeviceQueue(_Once([self.batch]), self.device, self._transforms)
        self.step(batch := next(iter(once)))
        return batch

    def loader_round(self, seconds: float) -> Round:
        """Take batches as fast as they come."""
        prepare_torch(self._trainer, self.device)
        return self._round(self.loader, lambda batch: None, seconds, least=2)

    def model_round(self, seconds: float) -> Round:
        """Train on one batch again and again."""
        step, batch = self.step, self._kept
        prepare_torch(self._trainer, self.device)
        samples, start = 0, time.perf_counter()
        while not samples or time.perf_counter() - start < seconds:
            step(batch)
            samples += batch["num_valid"]
        return Round(samples, time.perf_counter() - start)

    def training_round(self, seconds: float) -> Round:
        """Train on what the loader gives."""
        step = self.step
        prepare_torch(self._trainer, self.device)
        return self._round(self.prefetcher(), step, seconds, least=1)

    def prefetcher(self) -> DeviceQueue:
        """The loader's batches on the device, as training gets them."""
        return DeviceQueue(self.loader, self.device, self._transforms)

    def __enter__(self) -> Subject:
        return self

    def __exit__(self, *_: object) -> None:
        self.loader.close()

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


class _Once(list[Any]):
    """Batches as a loader that has nothing to go on from."""

    def state_dict(self) -> dict[str, Any]:
        """Nothing."""
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


def write_trace(subject: Subject, path: str) -> str:
    """Trace training steps, and write them as JSON that ``chrome://tracing`` and Perfetto read.

    The ranges are ``next batch`` (waiting, copying and the transforms on the device), in it
    ``wait for the loader``, and ``training step``.

    Args:
        subject: What trains.
        path: The file; folders that are not there are made.

    Returns:
        A line for the user.
    """
    step = subject.step
    prefetcher = subject.prefetcher()
    prefetcher.loader = _Marked(prefetcher.loader)
    batches = (batch for _ in count() for batch in prefetcher)
    step(next(batches))
    with profile() as traced:
        began, steps = time.perf_counter(), 0
        while steps < 2 or (steps < _TRACED_STEPS and time.perf_counter() - began < _TRACED_S):
            steps += 1
            with record_function("next batch"):
                batch = next(batches)
            with record_function("training step"):
                step(batch)
    batches.close()
    target = Path(path)
    target.parent.mkdir(parents=True, exist_ok=True)
    traced.export_chrome_trace(str(target))
    return f"{steps} training steps -> {target} (open it in chrome://tracing or Perfetto)"


class _Marked:
    """A loader whose consumer's waiting is a range of the trace."""

    def __init__(self, loader: Any) -> None:
        self._loader = loader

    def __iter__(self) -> Iterator[Any]:
        batches = iter(self._loader)
        while True:
            with record_function("wait for the loader"):
                batch = next(batches, None)
            if batch is None:
                return
            yield batch

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loader, name)
