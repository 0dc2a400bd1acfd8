"""How a worker that died is told."""

from __future__ import annotations

import signal

import pytest

from penstock.core.processes import ending_of
from penstock.pipeline.loader.worker_errors import describe_death


@pytest.mark.parametrize(
    ("number", "name"),
    [(signal.SIGTERM, "Terminated"), (signal.SIGRTMIN + 6, "Real-time signal 6")],
)
def test_any_signal_that_kills_a_worker_is_named(number, name):
    how = f"signal {int(number)} ({name})"
    assert f"ended with {how}" in describe_death(7, -int(number)) and ending_of(-int(number)) == how


def test_an_exit_code_is_told():
    assert "ended with exit code 3" in describe_death(7, 3)
    assert ending_of(3) == "exit code 3"
