"""Placement of workers: their cores and their priority."""

from __future__ import annotations

import logging
import os
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

from penstock.core.processes import usable_cores

if TYPE_CHECKING:
    from penstock.pipeline.loader.settings import LoaderSettings

_logger = logging.getLogger(__name__)

_said: set[str] = set()


@dataclass(frozen=True, slots=True)
class Placement:
    """Cores (None: the trainer's) and added niceness of a worker, which applies them itself."""

    cores: frozenset[int] | None = None
    nice: int = 0

    def enter(self) -> None:
        """Apply to the calling thread; threads that it starts inherit both."""
        if self.cores is not None:
            os.sched_setaffinity(0, self.cores)
        if self.nice:
            os.nice(self.nice)

    def enter_process(self) -> None:
        """Apply to every thread of this process, those of libraries included."""
        self.enter()
        priority = os.getpriority(os.PRIO_PROCESS, 0)
        for task in map(int, os.listdir("/proc/self/task")):
            with suppress(OSError):  # the thread has ended
                if self.cores is not None:
                    os.sched_setaffinity(task, self.cores)
                os.setpriority(os.PRIO_PROCESS, task, priority)


def placement_of(settings: LoaderSettings) -> Placement:
    """Return the placement that the settings ask for."""
    if settings.affinity == "none":
        return Placement(nice=settings.nice)
    return Placement(frozenset(settings.affinity), settings.nice)


def warn_about_cores(settings: LoaderSettings) -> None:
    """Warn once about more workers than cores."""
    workers, cores = settings.workers, usable_cores()
    if settings.num_workers != "auto" and workers > cores and "cores" not in _said:
        _said.add("cores")
        _logger.warning(
            "loader.num_workers=%d on %d CPU cores: it works, but more workers than cores "
            "take memory and gain nothing unless they wait for a network",
            workers, cores,
        )  # fmt: skip


def cores_text(cores: set[int]) -> str:
    """Format cores as the kernel does: ``0-3,8``."""
    ordered = sorted(cores)
    firsts = [core for core in ordered if core - 1 not in cores]
    lasts = [core for core in ordered if core + 1 not in cores]
    pairs = zip(firsts, lasts, strict=True)
    return ",".join(f"{first}" if first == last else f"{first}-{last}" for first, last in pairs)
