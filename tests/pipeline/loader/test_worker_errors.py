"""How a worker that died is told."""

from __future__ import annotations

import multiprocessing
import os
import signal

import pytest

from penstock.core.processes import ending_of
from penstock.pipeline.loader.worker_errors import describe_death


def _ended(target, argument):
    worker = multiprocessing.get_context("spawn").Process(target=target, args=(argument,))
    worker.start()
    worker.join()
    return worker


@pytest.mark.parametrize(
    ("number", "name"), [(signal.SIGTERM, "SIGTERM"), (signal.SIGRTMIN + 6, "SIGRTMIN+6")]
)
def test_any_signal_that_kills_a_worker_is_named(number, name):
    worker = multiprocessing.get_context("spawn").Process(
        target=signal.raise_signal, args=(number,)
    )
    worker.start()
    worker.join()
    assert f"was killed by signal {int(number)} ({name})" in describe_death([worker])
    assert ending_of(worker.exitcode) == f"signal {name}"


def test_an_exit_code_is_told():
    worker = _ended(os._exit, 3)
    assert "ended with exit code 3" in describe_death([worker])
    assert ending_of(worker.exitcode) == "exit code 3"
