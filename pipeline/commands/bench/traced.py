"""A trace of some training steps with their loader, for a profiler's viewer."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile, record_function

from pipeline.commands.bench.subject import Subject

_STEPS = 10
_FEWEST = 2
_SECONDS = 5.0


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
    activities = [ProfilerActivity.CPU]
    if torch.cuda.is_available():
        activities.append(ProfilerActivity.CUDA)
    batches = _endless(prefetcher)
    step(next(batches))
    with profile(activities=activities) as traced:
        began, steps = time.perf_counter(), 0
        while steps < _STEPS and (steps < _FEWEST or time.perf_counter() - began < _SECONDS):
            steps += 1
            with record_function("next batch"):
                batch = next(batches)
            with record_function("training step"):
                step(batch)
    batches.close()  # type: ignore[attr-defined]
    target = Path(path)
    target.parent.mkdir(parents=True, exist_ok=True)
    traced.export_chrome_trace(str(target))
    return f"{steps} training steps -> {target} (open it in chrome://tracing or Perfetto)"


def _endless(batches: Any) -> Iterator[Any]:
    while True:
        yield from batches


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
