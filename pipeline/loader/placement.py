"""Where workers run: the cores that they are bound to, and how far they give way."""

from __future__ import annotations

import os
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from penstock.pipeline.loader.settings import LoaderSettings


@dataclass(frozen=True, slots=True)
class Placement:
    """Binding and priority that a worker gives itself when it starts.

    Attributes:
        cores: The cores that it may run on; None: the cores of the trainer.
        nice: How much nicer it is than the trainer.
    """

    cores: frozenset[int] | None = None
    nice: int = 0

    def enter(self) -> None:
        """Bind the calling thread, and all that it will start; both calls are of a thread alone."""
        if self.cores is not None:
            os.sched_setaffinity(0, self.cores)
        if self.nice:
            os.nice(self.nice)

    def enter_process(self) -> None:
        """Bind the calling thread and all others, which libraries begin at a fork."""
        self.enter()
        priority = os.getpriority(os.PRIO_PROCESS, 0)
        for task in map(int, os.listdir("/proc/self/task")):
            with suppress(OSError):  # it ended meanwhile
                if self.cores is not None:
                    os.sched_setaffinity(task, self.cores)
                os.setpriority(os.PRIO_PROCESS, task, priority)


AS_THE_TRAINER = Placement()


def placement_of(settings: LoaderSettings) -> Placement:
    """Return the cores and the priority that the settings give workers."""
    if settings.affinity == "none":
        return Placement(nice=settings.nice)
    return Placement(frozenset(settings.affinity), settings.nice)


def cores_text(cores: set[int]) -> str:
    """Write cores as the kernel does: ``0-3,8``."""
    ordered = sorted(cores)
    firsts = [core for core in ordered if core - 1 not in cores]
    lasts = [core for core in ordered if core + 1 not in cores]
    pairs = zip(firsts, lasts, strict=True)
    return ",".join(f"{first}" if first == last else f"{first}-{last}" for first, last in pairs)
