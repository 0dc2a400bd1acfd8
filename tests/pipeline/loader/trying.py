"""Lets a loader of the auto engine try what a test wants, without looking at the clock."""

from __future__ import annotations

from typing import Any

from pipeline.loader.loader import Loader
from pipeline.loader.ring.calibration import Calibration
from pipeline.loader.ring.formation import Formation

THREADS, FEW, EACH, HERE = (
    Formation(2), Formation.spread(2, 1), Formation.spread(2, 2), Formation(),
)  # fmt: skip


def let_try(
    loader: Loader, *formations: Formation, prefers: Formation | None = None, **settings: Any
) -> Calibration:
    """Let the engine try formations.

    Args:
        loader: Of the auto engine, with two workers.
        formations: What is tried, after threads.
        prefers: What is kept; None the last one.
        settings: Of the calibration.
    """
    best = prefers or formations[-1]
    now = [0]

    def clock() -> float:
        now[0] += 1 if calibration.formation == best else 100
        return now[0]

    settings = {"depth": 1, "window_s": 0.0, "least": 3, **settings}
    calibration = Calibration(
        THREADS, lambda look: (list(formations), "told to"), clock=clock, **settings
    )
    loader._engine.calibration = calibration  # type: ignore[attr-defined]
    return calibration
