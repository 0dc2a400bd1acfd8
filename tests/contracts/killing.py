"""Kill a packing at a step; packing again gives the same bytes."""

from __future__ import annotations

import os
import signal
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

# Calls that change the disk; each is a step.
_STEPS = ("fsync", "replace", "rename", "unlink", "mkdir", "open")


def killed_at(run: Callable[[], int], at: int | None, *, steps: Path | None = None) -> int | None:
    """Run a program in a forked process that kills itself at a step that changes the disk.

    Args:
        run: The program; returns the exit status.
        at: The step; None lets it end.
        steps: A file for the number of steps of a program that ends.

    Returns:
        The exit status, or None for a killed process.
    """
    child = os.fork()
    if child == 0:
        count = _die_at(at)
        status = 99
        try:
            status = run()
            if steps is not None:
                steps.write_text(str(count()))
        except BaseException:
            traceback.print_exc()
        os._exit(status)
    _, status = os.waitpid(child, 0)
    if os.WIFSIGNALED(status):
        assert os.WTERMSIG(status) == signal.SIGKILL
        return None
    return os.WEXITSTATUS(status)


def _die_at(at: int | None) -> Callable[[], int]:
    count, opening = 0, os.open

    def counting(call: Callable[..., Any]) -> Callable[..., Any]:
        def step(*arguments: Any, **named: Any) -> Any:
            nonlocal count
            if call is opening and not arguments[1] & (os.O_WRONLY | os.O_RDWR):
                return call(*arguments, **named)
            if count == at:
                os.kill(os.getpid(), signal.SIGKILL)
            count += 1
            return call(*arguments, **named)

        return step

    for name in _STEPS:
        setattr(os, name, counting(getattr(os, name)))
    return lambda: count
