"""How much memory may still be used: the machine's, and the limit of this container or job."""

from __future__ import annotations

from pathlib import Path


def available_bytes(root: Path = Path("/")) -> int | None:
    """Memory that can be taken without swapping or being killed.

    Args:
        root: Where ``proc`` and ``sys`` are; another one in tests.

    Returns:
        Bytes; None where the system does not say (it is no Linux).
    """
    limits = []
    for line in _lines(root / "proc/meminfo"):
        if line.startswith("MemAvailable:"):
            limits.append(int(line.split()[1]) * 1024)
    for line in _lines(root / "proc/self/cgroup"):
        number, controllers, path = line.split(":", 2)
        if number == "0":
            limits += _group_limits(root / "sys/fs/cgroup", path, "memory.max", "memory.current")
        elif "memory" in controllers.split(","):
            limits += _group_limits(
                root / "sys/fs/cgroup/memory",
                path,
                "memory.limit_in_bytes",
                "memory.usage_in_bytes",
            )
    return max(0, min(limits)) if limits else None


def _group_limits(mount: Path, path: str, limit_name: str, usage_name: str) -> list[int]:
    """What each control group, from the process's own to the root, has left."""
    left = []
    group = mount / path.lstrip("/")
    for folder in (group, *group.parents):
        limit = _number(folder / limit_name)
        usage = _number(folder / usage_name)
        if limit is not None and usage is not None:
            # Files in the page cache count as used and are given back when memory is short.
            cached = 0
            for line in _lines(folder / "memory.stat"):
                if line.startswith("inactive_file "):
                    cached = int(line.split()[1])
            left.append(limit - (usage - cached))
        if folder == mount:
            break
    return left


def _number(file: Path) -> int | None:
    lines = _lines(file)
    return int(lines[0]) if lines and lines[0].isdigit() else None


def _lines(file: Path) -> list[str]:
    try:
        return file.read_text().splitlines()
    except OSError:  # no such file: another version of control groups, or no Linux
        return []
