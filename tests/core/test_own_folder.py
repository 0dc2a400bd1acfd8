"""What a process leaves behind that was killed with all that it started is removed by the next."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import psutil
import pytest

from tests.pipeline.loader.programs import assert_gone, start_program

PROGRAM = """
import sys
from multiprocessing import util
from penstock.core.files import own_folder
from penstock.core.processes import ensure_server, process_context

if __name__ == "__main__":
    context = process_context("forkserver")
    semaphore = context.Lock()
    ensure_server("forkserver")
    assert util.get_temp_dir() == str(own_folder())
    print(own_folder(), flush=True)
    if sys.argv[1] == "wait":
        sys.stdin.readline()
"""


@pytest.fixture(autouse=True)
def temporary(monkeypatch):
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:  # a socket's path is short
        monkeypatch.setenv("TMPDIR", folder)
        yield


def _start(tmp_path: Path) -> tuple[subprocess.Popen[str], Path]:
    process = start_program(tmp_path, PROGRAM, "wait")
    assert process.stdout is not None
    return process, Path(process.stdout.readline().strip())


def _left(folder: Path) -> list[str]:
    semaphores = [path.name for path in Path("/dev/shm").glob(f"sem.{folder.name}-*")]
    return [*semaphores, *(path.name for path in folder.parent.iterdir())]


def test_of_the_dead_and_nobody_elses(tmp_path):
    process, folder = _start(tmp_path)
    living, its = _start(tmp_path)
    try:
        assert any(name.startswith(f"sem.{folder.name}-") for name in _left(folder))
        assert any(path.name.startswith("listener-") for path in folder.iterdir())
        family = psutil.Process(process.pid).children(recursive=True)
        os.killpg(process.pid, signal.SIGKILL)  # and whoever would clean up
        process.communicate()
        assert_gone(family)
        assert folder.exists()
        script = [sys.executable, str(tmp_path / "script.py"), "end"]
        ended = subprocess.run(script, env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
                               capture_output=True, text=True)  # fmt: skip
        assert ended.returncode == 0 and ended.stderr == ""
        assert _left(folder) == [its.name], "of the one that ended by itself neither"
        assert any(name.startswith(f"sem.{its.name}-") for name in _left(its))
    finally:
        living.communicate("\n")
    assert _left(its) == []
