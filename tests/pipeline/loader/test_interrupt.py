"""Ctrl-C and the end of the main process: no tracebacks of workers, no process left."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

ROOT = Path(__file__).resolve().parents[3]

SCRIPT = """
import sys
from tests.pipeline.loader.fakes import FakeDataset, make_loader
if __name__ == "__main__":
    loader = make_loader(
        FakeDataset(4000, slow_s=0.05), engine="torch", num_workers=2,
        multiprocessing_context=sys.argv[1],
    )
    try:
        for number, batch in enumerate(loader):
            print(number, flush=True)
    except KeyboardInterrupt:
        loader.close()
        print("interrupted", flush=True)
"""


STARTING = """
import sys
from tests.pipeline.loader.fakes import FakeDataset, make_loader
if __name__ == "__main__":
    try:
        print("ready", flush=True)
        with make_loader(
            FakeDataset(4000, slow_s=0.05), engine=sys.argv[1], num_workers=2,
            processes=2 if sys.argv[1] == "ring" else 0, multiprocessing_context=sys.argv[2],
        ) as loader:
            list(loader)
    except KeyboardInterrupt:
        print("interrupted", flush=True)
"""


@pytest.mark.parametrize(
    ("engine", "start_method"),
    [
        ("ring", "forkserver"),
        pytest.param("ring", "spawn", marks=pytest.mark.slow),
        pytest.param("torch", "spawn", marks=pytest.mark.slow),
    ],
)
def test_ctrl_c_does_not_reach_processes_that_are_still_starting(tmp_path, engine, start_method):
    script = tmp_path / "script.py"
    script.write_text(STARTING)
    runs = []
    for after_s in (0.05, 0.3):
        process = subprocess.Popen(
            [sys.executable, str(script), engine, start_method],
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True,
        )  # fmt: skip
        started = _children_that_import(process)
        time.sleep(after_s)
        os.killpg(process.pid, signal.SIGINT)
        runs.append((process, started))
    for process, started in runs:
        out, err = process.communicate(timeout=60)
        assert (out, err, process.returncode) == ("ready\ninterrupted\n", "", 0)
        _assert_gone(started, timeout_s=10)


def _children_that_import(process: subprocess.Popen[str]) -> list[psutil.Process]:
    """The processes that will be workers, or a server of these, as soon as there is one."""
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline and process.poll() is None:
        for child in _workers(process):
            with suppress(psutil.Error):
                command = " ".join(child.cmdline())
                if "forkserver import" in command or "spawn import" in command:
                    return [child]
        time.sleep(0.005)
    raise AssertionError("no worker process was started")


def _start(tmp_path: Path, start_method: str) -> subprocess.Popen[str]:
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    process = subprocess.Popen(
        [sys.executable, str(script), start_method],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    assert process.stdout is not None and process.stdout.readline() == "0\n"
    return process


def _workers(process: subprocess.Popen[str]) -> list[psutil.Process]:
    return psutil.Process(process.pid).children(recursive=True)


@pytest.mark.parametrize("start_method", ["fork", "forkserver"])
def test_ctrl_c_is_for_the_main_process(tmp_path, start_method):
    process = _start(tmp_path, start_method)
    workers = _workers(process)
    os.killpg(process.pid, signal.SIGINT)
    out, err = process.communicate(timeout=20)
    assert out.endswith("interrupted\n") and process.returncode == 0
    assert err == ""
    _assert_gone(workers, timeout_s=5)


def test_workers_end_when_the_main_process_is_killed(tmp_path):
    process = _start(tmp_path, "fork")
    workers = _workers(process)
    process.kill()
    process.communicate(timeout=20)
    _assert_gone(workers, timeout_s=15)


def _assert_gone(processes: list[psutil.Process], timeout_s: float) -> None:
    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline and any(map(_runs, processes)):
        time.sleep(0.1)
    assert not any(map(_runs, processes))


def _runs(process: psutil.Process) -> bool:
    try:
        return process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False
