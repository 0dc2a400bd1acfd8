"""Memory and processor time of a process and its descendants, from /proc.

A benchmark's cell begins a POSIX session (`setsid`). All processes with its id are its family, and
orphaned ones keep the id.
"""

from __future__ import annotations

import os
from pathlib import Path

TICK_S = 1 / os.sysconf("SC_CLK_TCK")


def members(session: int | None = None) -> list[int]:
    """Return the ids of the processes of a session, by default this process's session.

    Zombie processes are left out.
    """
    session = os.getsid(0) if session is None else session
    pids = [int(entry) for entry in os.listdir("/proc") if entry.isdigit()]
    return [pid for pid in pids if _session(pid) == session and _fields(pid)[:1] != ["Z"]]


def _session(pid: int) -> int | None:
    try:
        return os.getsid(pid)
    except (ProcessLookupError, PermissionError):
        return None


def _fields(pid: int) -> list[str]:
    """Return fields of /proc/PID/stat from the third, the state (proc(5)); empty after its end."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return []
    return stat.rpartition(")")[2].split()  # the name, in parentheses, may hold spaces


def pss_mb(pids: list[int]) -> float:
    """Return the total proportional set size in MB: a page that n processes map counts 1/n each."""
    return sum(_memory_kb(pid, "Pss:") for pid in pids) * 1024 / 1e6


def private_mb(pid: int) -> float:
    """Return the private memory of a process in MB, without the slots that store batches.

    A worker writes the slots, and the consumer maps them too.
    """
    return _memory_kb(pid, "Private_Clean:", "Private_Dirty:", file="smaps") * 1024 / 1e6


def _memory_kb(pid: int, *fields: str, file: str = "smaps_rollup") -> int:
    try:
        text = Path(f"/proc/{pid}/{file}").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return 0
    total, counts = 0, True
    for line in text.splitlines():
        parts = line.split()
        if not parts[0].endswith(":"):  # a mapping begins
            counts = "memfd:penstock" not in line
        elif counts and parts[0] in fields:
            total += int(parts[1])
    return total


def processor_s(pids: list[int]) -> float:
    """Return the processor time of processes and their ended children, in seconds.

    The kernel counts in ticks of `TICK_S` seconds.
    """
    times = [_fields(pid)[11:15] for pid in pids]  # user and system time, and of children
    return TICK_S * sum(int(field) for fields in times for field in fields)
