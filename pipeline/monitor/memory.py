"""How much memory this process and those it has started take."""

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
    found = [_proportional(root / str(pid)) for pid in _tree(root, os.getpid())]
    known = [size for size in found if size is not None]
    return sum(known) if known else None


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


def _proportional(process: Path) -> int | None:
    try:
        lines = (process / "smaps_rollup").read_text().splitlines()
    except OSError:
        return None
    for line in lines:
        if line.startswith("Pss:"):
            return int(line.split()[1]) * 1024
    return None
