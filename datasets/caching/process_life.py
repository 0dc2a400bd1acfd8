"""Whether another process is still there."""

from __future__ import annotations

import os


def is_alive(pid: int) -> bool:
    """Whether a process runs; one that has ended, and was not asked for how, does not."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return not _is_zombie(pid)


def _is_zombie(pid: int) -> bool:
    """Whether a process has ended, and only its parent has not asked for how."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            return file.read().rpartition(b")")[2].split()[0] == b"Z"
    except (OSError, IndexError):  # no Linux, or gone meanwhile
        return False
