"""How many cores this process may use: its affinity, and what its containers allow it."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

_MOST_WORKERS = 32
"""More workers than this are a choice: each holds batches in memory."""


def usable_cores(root: Path = Path("/")) -> int:
    """Cores that this process may run on: its affinity, within its CPU quota (cgroup v1, v2).

    Args:
        root: Where ``/proc`` and ``/sys`` are.
    """
    if hasattr(os, "sched_getaffinity"):
        cores = len(os.sched_getaffinity(0))
    else:
        cores = os.cpu_count() or 1
    return max(1, min([cores, *(math.ceil(quota) for quota in _quotas(root))]))


def default_workers() -> int:
    """Workers for ``loader.num_workers=auto``: this rank's share of the cores, at most 32."""
    ranks = max(1, int(os.environ.get("LOCAL_WORLD_SIZE", "1")))
    return max(1, min(usable_cores() // ranks, _MOST_WORKERS))


def _quotas(root: Path) -> Iterator[float]:
    """Every quota, in cores, that holds for this process or for a group that it is in."""
    try:
        lines = (root / "proc/self/cgroup").read_text().splitlines()
    except OSError:
        return
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if not controllers:
            mounts = ["sys/fs/cgroup"]
        elif "cpu" in controllers.split(","):
            mounts = ["sys/fs/cgroup/cpu", f"sys/fs/cgroup/{controllers}"]
        else:
            continue
        # In a container the path may be that of the machine, which is not to be seen here; the
        # container's own group is then the root of the mount.
        group = PurePosixPath(path).relative_to("/")
        for mount in mounts:
            for at in (group, *group.parents):
                quota = _quota_of(root / mount / at)
                if quota is not None:
                    yield quota


def _quota_of(folder: Path) -> float | None:
    """The quota of one group, in cores; None if it has none."""
    try:
        if (folder / "cpu.max").exists():  # v2
            quota, period = (folder / "cpu.max").read_text().split()
        else:
            quota = (folder / "cpu.cfs_quota_us").read_text()
            period = (folder / "cpu.cfs_period_us").read_text()
        return int(quota) / int(period) if int(quota) > 0 else None
    except (OSError, ValueError):  # not there, or "max"
        return None
