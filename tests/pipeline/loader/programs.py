"""Programs that tests start, signal and end, and what these leave behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from functools import partial
from pathlib import Path

import psutil

ROOT = Path(__file__).resolve().parents[3]


def start_program(tmp_path: Path, text: str, *arguments: str) -> subprocess.Popen[str]:
    """Start a program in a session of its own, which Ctrl-C reaches as it reaches one at work.

    A shell's background jobs ignore Ctrl-C, and so would all that tests start in one.
    """
    script = tmp_path / "script.py"
    script.write_text(text)
    return subprocess.Popen(
        [sys.executable, str(script), *arguments],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        preexec_fn=partial(signal.signal, signal.SIGINT, signal.SIG_DFL),
    )


def family_at_work(process: subprocess.Popen[str]) -> list[psutil.Process]:
    """The processes that a program has started when it prints its first line, "0"."""
    assert process.stdout is not None and process.stdout.readline() == "0\n"
    return psutil.Process(process.pid).children(recursive=True)


def assert_gone(processes: list[psutil.Process], timeout_s: float = 120) -> None:
    """Wait until all processes have ended."""
    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline and any(map(runs, processes)):
        time.sleep(0.05)
    assert not [process for process in processes if runs(process)]


def runs(process: psutil.Process) -> bool:
    """Whether a process has not ended."""
    try:
        return process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False
