"""Whether shared memory holds the batches on their way, found out before the first of them."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from pipeline.loader.contract import BatchTask, Delivery

_PLENTY_BYTES = 2 << 30


def check_shared_memory(
    compute: Callable[[BatchTask], Delivery],
    task: BatchTask,
    *,
    in_flight: int,
    path: Path = Path("/dev/shm"),
) -> None:
    """Refuse to start when the batches in flight cannot fit.

    Where shared memory is small (a container has 64 MB unless told otherwise), one sample is
    computed here to learn the size of a batch.

    Args:
        compute: A task to a delivery.
        task: The first task.
        in_flight: Number of batches that exist at the same time.
        path: The file system of shared memory.

    Raises:
        ValueError: It is too small; the message says what is needed and what to do.
    """
    free_bytes = _free_bytes(path)
    if free_bytes is None or free_bytes >= _PLENTY_BYTES:
        return
    first = replace(
        task,
        positions=task.positions[:1],
        valid=task.valid[:1],
        indices=task.indices[:1],
        items=task.items and task.items[:1],
    )
    batch = compute(first).batch
    if batch is None:
        return
    sample_bytes = sum(_size_bytes(value) for value in batch.values())
    needed_bytes = sample_bytes * task.positions.size * in_flight
    if needed_bytes > free_bytes:
        raise ValueError(
            f"loader: {path} has {_megabytes(free_bytes)} free, and {in_flight} batches in "
            f"flight need about {_megabytes(needed_bytes)}; enlarge it (docker run "
            f"--shm-size=8g), or lower loader.num_workers, loader.prefetch_factor or "
            f"loader.batch_size"
        )


def _free_bytes(path: Path) -> int | None:
    try:
        stats = os.statvfs(path)
    except OSError:
        return None
    return stats.f_bavail * stats.f_frsize


def _size_bytes(value: Any) -> int:
    if isinstance(value, dict):
        return sum(_size_bytes(item) for item in value.values())
    if isinstance(value, (list, tuple)):
        return sum(_size_bytes(item) for item in value)
    return int(getattr(value, "nbytes", 0))


def _megabytes(size_bytes: int) -> str:
    return f"{size_bytes / 1e6:,.0f} MB"
