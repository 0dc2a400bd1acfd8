"""How much of the copying to a device lies under its computing, as a profiler's trace shows it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any


def overlap_share(events: Iterable[dict[str, Any]]) -> float | None:
    """Share of the time of copies to the device in which kernels run too; None without copies."""
    spans: dict[str, list[tuple[float, float]]] = {"copy": [], "kernel": []}
    for event in events:
        if event.get("ph") != "X":
            continue
        start, kind = float(event["ts"]), event.get("cat")
        span = (start, start + float(event["dur"]))
        if kind == "kernel":
            spans["kernel"].append(span)
        elif kind == "gpu_memcpy" and "HtoD" in event["name"]:
            spans["copy"].append(span)
    copies, kernels = (_united(spans[kind]) for kind in ("copy", "kernel"))
    total = sum(stop - start for start, stop in copies)
    if not total:
        return None
    both = sum(
        max(0.0, min(stop, other_stop) - max(start, other_start))
        for start, stop in copies
        for other_start, other_stop in kernels
    )
    return both / total


def _united(spans: list[tuple[float, float]]) -> list[tuple[float, float]]:
    """Spans that do not overlap, of the same times."""
    united: list[tuple[float, float]] = []
    for start, stop in sorted(spans):
        if united and start <= united[-1][1]:
            united[-1] = united[-1][0], max(stop, united[-1][1])
        else:
            united.append((start, stop))
    return united
