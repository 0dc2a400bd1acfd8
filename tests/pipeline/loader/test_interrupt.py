"""Ctrl-C and the end of the main process: no tracebacks of workers, no process left."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
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
