"""A process and all that it started: their memory and their time on the processor, from /proc.

A benchmark's cell is the leader of a session of its own, so its family is that session: also
processes that their parent has left behind are found.
"""

from __future__ import annotations

import os
from pathlib import Path

TICK_S = 1 / os.sysconf("SC_CLK_TCK")


def members(session: int | None = None) -> list[int]:
    """Ids of the processes of a session; of this process's own, if none is given.

    Those that have ended and that nobody has waited for yet are none.
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
    """Fields of /proc/PID/stat from the third, the state, on (proc(5)); none if it has ended."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return []
    return stat.rpartition(")")[2].split()  # the name, in parentheses, may hold spaces


def pss_mb(pids: list[int]) -> float:
    """Proportional set size of some processes together, MB: pages that n map count 1/n each."""
    return sum(_memory_kb(pid, "Pss:") for pid in pids) * 1024 / 1e6


def private_mb(pid: int) -> float:
    """Memory that one process has for itself alone, MB, without the slots that batches lie in.

    Those are the slots': written by a worker, then mapped by the consumer too.
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
    """Processor time of some processes and of their children that have ended, seconds.

    The kernel counts it in ticks, of which there are `TICK_S` seconds each.
    """
    times = [_fields(pid)[11:15] for pid in pids]  # user and system time, and of children
    return TICK_S * sum(int(field) for fields in times for field in fields)
