"""What a process leaves behind that was killed with all that it started is removed by the next."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from tests.pipeline.loader.programs import start_program

PROGRAM = """
import sys
from penstock.core.files import own_folder

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


def test_of_the_dead_and_nobody_elses(tmp_path):
    process, folder = _start(tmp_path)
    living, its = _start(tmp_path)
    try:
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
        assert folder.exists()
        script = [sys.executable, str(tmp_path / "script.py"), "end"]
        ended = subprocess.run(script, env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
                               capture_output=True, text=True)  # fmt: skip
        assert ended.returncode == 0 and ended.stderr == ""
        assert [path.name for path in folder.parent.iterdir()] == [its.name]
    finally:
        living.communicate("\n")
