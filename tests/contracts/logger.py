"""Contract of a logger: every metric of a run once, also in a run that was killed and resumed."""

from __future__ import annotations

import io
from collections.abc import Callable, Mapping

import numpy as np
import torch

from penstock.core.contracts import Logger, LoggerCapabilities, capabilities_of

Figures = Mapping[tuple[str, int], float]
"""Metrics by name and step."""

ROWS = [
    (3, {"epoch": 0.0, "train/loss": 0.5, "time/data_wait": 0.125}),
    (6, {"epoch": 0.0, "train/loss": 0.25}),
    (6, {"epoch": 0.0, "val/loss": 0.75, "lr": 2**-10}),  # a second row of a step
    (9, {"epoch": 1.0, "train/loss": 0.125, "val/top 5": float("nan")}),
    (12, {"epoch": 1.0, "train/loss": float("inf")}),
]


def check_logger(make: Callable[[], Logger], read: Callable[[], Figures]) -> None:
    """Log the rows of a run that is killed after its checkpoint, and resume from it.

    Args:
        make: Makes the logger of the run.
        read: Reads all metrics of a closed logger.
    """
    first = make()
    _begin(first)
    picture = capabilities_of(first, LoggerCapabilities).picture
    if picture is not None:
        picture(0, "first_batch", np.full((4, 6, 3), 7, np.uint8))
    for step, values in ROWS[:3]:
        first.log(step, dict(values))
    state = _kept(first.state_dict())
    for step, values in ROWS[3:4]:  # the log may have this row, the checkpoint does not
        first.log(step, dict(values))
    first.close()

    second = make()
    second.load_state_dict(state)
    _begin(second)
    for step, values in ROWS[3:]:
        second.log(step, dict(values))
    failed = capabilities_of(second, LoggerCapabilities).failed
    if failed is not None:
        failed()
    second.close()
    found = read()
    wanted = {(name, step): value for step, row in ROWS for name, value in row.items()}
    assert {key: repr(found.get(key)) for key in wanted} == {k: repr(v) for k, v in wanted.items()}

    third = make()  # a run that ends before its first row
    _begin(third)
    third.close()


def _begin(logger: Logger) -> None:
    begin = capabilities_of(logger, LoggerCapabilities).begin
    if begin is not None:
        begin()


def _kept(state: dict[str, object]) -> dict[str, object]:
    """Return the state as a checkpoint restores it."""
    file = io.BytesIO()
    torch.save(state, file)
    file.seek(0)
    kept: dict[str, object] = torch.load(file, weights_only=True)
    return kept
