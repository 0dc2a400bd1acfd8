"""How a worker that died is told."""

from __future__ import annotations

import signal

import pytest

from penstock.core.processes import ending_of
from penstock.pipeline.loader.worker_errors import describe_death


@pytest.mark.parametrize(
    ("number", "name"), [(signal.SIGTERM, "SIGTERM"), (signal.SIGRTMIN + 6, "SIGRTMIN+6")]
)
def test_any_signal_that_kills_a_worker_is_named(number, name):
    assert f"was killed by signal {int(number)} ({name})" in describe_death(7, -int(number))
    assert ending_of(-int(number)) == f"signal {name}"


def test_an_exit_code_is_told():
    assert "ended with exit code 3" in describe_death(7, 3)
    assert ending_of(3) == "exit code 3"
