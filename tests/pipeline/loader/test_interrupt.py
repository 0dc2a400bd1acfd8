"""Ctrl-C and the end of the main process: no tracebacks of workers, no process left."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from contextlib import suppress

import psutil
import pytest

from tests.pipeline.loader.programs import assert_gone, family_at_work, start_program

SCRIPT = """
import sys
from tests.pipeline.loader.fakes import FakeDataset, make_loader
loader = make_loader(FakeDataset(4000, slow_s=0.05), engine=sys.argv[1], num_workers=2)
try:
    for number, batch in enumerate(loader):
        print(number, flush=True)
        if sys.argv[2] == "exit" and number == 2:
            sys.exit(0)
        if sys.argv[2] == "raise" and number == 2:
            raise LookupError("on purpose")
except KeyboardInterrupt:
    print("interrupted", flush=True)
"""
ENGINES = pytest.mark.parametrize("engine", ["processes", "torch"])


STARTING = """
import sys
from tests.pipeline.loader.fakes import FakeDataset, make_loader
if __name__ == "__main__":
    try:
        print("ready", flush=True)
        with make_loader(
            FakeDataset(4000, slow_s=0.05), engine=sys.argv[1], num_workers=2,
        ) as loader:
            list(loader)
    except KeyboardInterrupt:
        print("interrupted", flush=True)
"""


@pytest.mark.parametrize("engine", ["processes", pytest.param("torch", marks=pytest.mark.slow)])
def test_ctrl_c_does_not_reach_processes_that_are_still_starting(tmp_path, engine):
    runs = []
    for after_s in (0.05, 0.3):
        process = start_program(tmp_path, STARTING, engine)
        started = _children_that_import(process)
        time.sleep(after_s)
        os.killpg(process.pid, signal.SIGINT)
        runs.append((process, started))
    for process, started in runs:
        out, err = process.communicate(timeout=250)
        assert (out, err, process.returncode) == ("ready\ninterrupted\n", "", 0)
        assert_gone(started)


def _children_that_import(process: subprocess.Popen[str]) -> list[psutil.Process]:
    """The processes that will be workers, or a server of these, as soon as there is one."""
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline and process.poll() is None:
        for child in psutil.Process(process.pid).children(recursive=True):
            with suppress(psutil.Error):
                command = " ".join(child.cmdline())
                if "forkserver import" in command or "loader.worker" in command:
                    return [child]
        time.sleep(0.005)
    raise AssertionError("no worker process was started")


@ENGINES
def test_ctrl_c_is_for_the_main_process(tmp_path, engine):
    process = start_program(tmp_path, SCRIPT, engine, "never")
    workers = family_at_work(process)
    os.killpg(process.pid, signal.SIGINT)
    out, err = process.communicate(timeout=250)
    assert out.endswith("interrupted\n") and process.returncode == 0
    assert err == ""
    assert_gone(workers)


@ENGINES
def test_workers_end_when_the_main_process_is_killed(tmp_path, engine):
    process = start_program(tmp_path, SCRIPT, engine, "never")
    workers = family_at_work(process)
    process.kill()
    process.communicate(timeout=250)
    assert_gone(workers)


@pytest.mark.parametrize(("engine", "end"), [("processes", "exit"), ("threads", "raise")])
def test_the_main_process_ends_without_closing(tmp_path, engine, end):
    process = start_program(tmp_path, SCRIPT, engine, end)
    family = family_at_work(process)
    _, err = process.communicate(timeout=250)
    assert process.returncode == (1 if end == "raise" else 0)
    assert ("LookupError: on purpose" in err) == (end == "raise")
    assert "Fatal" not in err
    assert_gone(family)
