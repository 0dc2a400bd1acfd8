"""Lets a loader of the auto engine try what a test wants, without looking at the clock."""

from __future__ import annotations

from typing import Any

from penstock.pipeline.loader.engines.calibration import Calibration
from penstock.pipeline.loader.engines.pool import WorkerLayout
from penstock.pipeline.loader.loader import Loader

THREADS, FEW, EACH, HERE = (
    WorkerLayout(2), WorkerLayout.spread(2, 1), WorkerLayout.spread(2, 2), WorkerLayout(),
)  # fmt: skip


def let_try(
    loader: Loader, *layouts: WorkerLayout, prefers: WorkerLayout | None = None, **settings: Any
) -> Calibration:
    """Let the engine try layouts.

    Args:
        loader: Of the auto engine, with two workers.
        layouts: What is tried, after threads.
        prefers: What is kept; None the last one.
        settings: Of the calibration.
    """
    best = prefers or layouts[-1]
    now = [0]

    def clock() -> float:
        now[0] += 1 if calibration.layout == best else 100
        return now[0]

    settings = {"depth": 1, "window_s": 0.0, "least": 3, "most_runs": 10**9, **settings}
    calibration = Calibration(
        THREADS, lambda look: (list(layouts), "told to"), clock=clock, **settings
    )
    loader._engine.calibration = calibration  # type: ignore[attr-defined]
    return calibration
