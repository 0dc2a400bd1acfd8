"""How a process ends: a line and a status, never a traceback that says nothing."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import NoReturn

import pytest

from penstock.pipeline.program import exit_with


def _raise(error: BaseException) -> NoReturn:
    raise error


def test_a_missing_dependency_says_what_to_install():
    missing = ModuleNotFoundError("No module named 'hydra'", name="hydra.core")
    with pytest.raises(SystemExit, match=r"no package 'hydra' in .*: pip install -c constraints"):
        exit_with(lambda: _raise(missing))


def test_what_a_users_file_lacks_keeps_its_traceback():
    with pytest.raises(ModuleNotFoundError):
        exit_with(lambda: _raise(ModuleNotFoundError("No module named 'x'", name="x")))


def test_an_early_interrupt_is_one_word(capsys):
    with pytest.raises(SystemExit) as ended:
        exit_with(lambda: _raise(KeyboardInterrupt()))
    assert ended.value.code == 130
    assert capsys.readouterr().err == "interrupted\n"


def test_a_closed_output_is_no_mistake():
    code = """
import sys
from penstock.pipeline.program import exit_with
def run():
    print("x", flush=True)
    print(sys.stdout.isatty(), file=sys.stderr)
    return 3
exit_with(run)"""
    for closed in (">&-", "2>&-", ">&- 2>&-"):
        command = f'exec "$0" -c "$1" {closed}'
        done = subprocess.run(["sh", "-c", command, sys.executable, code], capture_output=True)
        assert done.returncode == 3
        assert done.stderr == (b"False\n" if closed == ">&-" else b"")


def test_letters_that_the_output_cannot_show_are_escaped():
    code = """
import sys
from penstock.pipeline.program import exit_with
def run():
    print("n\\u00e4me")
    print("n\\u00e4me", file=sys.stderr)
    return 0
exit_with(run)"""
    done = subprocess.run(
        [sys.executable, "-c", code.replace("\\\\", "\\")],
        capture_output=True,
        env={**os.environ, "PYTHONIOENCODING": "ascii"},
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, b"n\\xe4me\n", b"n\\xe4me\n")


def test_a_rank_ends_after_its_exit_handlers():
    code = """
import atexit, sys
from penstock.pipeline.program import exit_with
class Late:
    def __del__(self):
        print("late")
def run():
    sys.late = Late()
    atexit.register(print, "handler")
    return 3
exit_with(run)"""
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, env={**os.environ, "WORLD_SIZE": "2"}
    )
    assert (done.returncode, done.stdout, done.stderr) == (3, b"handler\n", b"")
