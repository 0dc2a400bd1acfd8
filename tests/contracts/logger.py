"""Contract of a logger: every metric of a run once, also in a run that was killed and resumed."""

from __future__ import annotations

import io
from collections.abc import Callable, Mapping

import torch

from penstock.core.contracts import Logger

Step = Callable[[Logger], None]
Figures = Mapping[tuple[str, int], float]
"""Metrics by name and step."""

ROWS = [
    (3, {"epoch": 0.0, "train/loss": 0.5, "time/data_wait": 0.125}),
    (6, {"epoch": 0.0, "train/loss": 0.25}),
    (6, {"epoch": 0.0, "val/loss": 0.75, "lr": 2**-10}),  # a second row of a step
    (9, {"epoch": 1.0, "train/loss": 0.125, "val/top 5": float("nan")}),
    (12, {"epoch": 1.0, "train/loss": float("inf")}),
]


def nothing(logger: Logger) -> None:
    """Leave a logger as it is."""


def check_logger(
    make: Callable[[], Logger],
    read: Callable[[], Figures],
    *,
    begin: Step = nothing,
    draw: Step = nothing,
    fail: Step = nothing,
) -> None:
    """Log the rows of a run that is killed after its checkpoint, and resume from it.

    Args:
        make: Makes the logger of the run.
        read: Reads all metrics of a closed logger.
        begin: Begins a run, for loggers that do so apart.
        draw: Logs a picture, for loggers that take one.
        fail: Marks a run as failed, for loggers that can.
    """
    first = make()
    begin(first)
    draw(first)
    for step, values in ROWS[:3]:
        first.log(step, dict(values))
    state = _kept(first.state_dict())
    for step, values in ROWS[3:4]:  # the log may have this row, the checkpoint does not
        first.log(step, dict(values))
    first.close()

    second = make()
    second.load_state_dict(state)
    begin(second)
    for step, values in ROWS[3:]:
        second.log(step, dict(values))
    fail(second)
    second.close()
    found = read()
    wanted = {(name, step): value for step, row in ROWS for name, value in row.items()}
    assert {key: repr(found.get(key)) for key in wanted} == {k: repr(v) for k, v in wanted.items()}

    third = make()  # a run that ends before its first row
    begin(third)
    third.close()


def _kept(state: dict[str, object]) -> dict[str, object]:
    """Return the state as a checkpoint restores it."""
    file = io.BytesIO()
    torch.save(state, file)
    file.seek(0)
    kept: dict[str, object] = torch.load(file, weights_only=True)
    return kept
