"""Measure the memory of processes, as the system tells it in ``/proc`` (proc(5))."""

from __future__ import annotations

import os
from pathlib import Path


def used_bytes(root: Path = Path("/proc")) -> int | None:
    """Proportional memory (PSS) of this process and all below it: shared pages count once.

    Args:
        root: Where the ``proc`` file system is; another one in tests.

    Returns:
        Bytes; None where the system does not say (it is no Linux).
    """
    found = [_bytes_of(root / str(pid), "Pss:") for pid in _tree(root, os.getpid())]
    known = [size for size in found if size is not None]
    return sum(known) if known else None


def own_bytes(process: Path = Path("/proc/self")) -> int | None:
    """Memory that a process has for itself alone, which nothing could take from it: no file's.

    Returns:
        Bytes; None where the system does not say (it is no Linux).
    """
    return _bytes_of(process, "Private_Dirty:", "SwapPss:")


def _tree(root: Path, pid: int) -> list[int]:
    """A process and its descendants."""
    pids = [pid]
    for parent in pids:  # grows while it is read
        for task in (root / str(parent) / "task").glob("*/children"):
            try:
                pids += [int(text) for text in task.read_text().split()]
            except OSError:  # a thread that has ended meanwhile
                continue
    return pids


def _bytes_of(process: Path, *fields: str) -> int | None:
    """The sum of some fields of a process's memory; None where they cannot be read."""
    try:
        lines = (process / "smaps_rollup").read_text().splitlines()
    except OSError:
        return None
    return 1024 * sum(int(line.split()[1]) for line in lines if line.startswith(fields))
