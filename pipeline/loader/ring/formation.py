"""Which threads of which processes compute batches, and how they are started."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pipeline.loader.contract import BatchTask, Delivery
from pipeline.loader.host_memory import host_memory
from pipeline.loader.read_ahead import ReadAhead, reads_ahead
from pipeline.loader.ring.board import Crew
from pipeline.loader.starting import warn_about_cores

if TYPE_CHECKING:
    from pipeline.loader.settings import LoaderSettings


@dataclass(frozen=True, slots=True)
class Formation:
    """The threads that compute; with none of either kind, the consumer's own thread does.

    Attributes:
        threads: Threads of this process.
        processes: Threads of each worker process.
    """

    threads: int = 0
    processes: tuple[int, ...] = ()

    @classmethod
    def spread(cls, workers: int, processes: int) -> Formation:
        """As many workers, spread evenly over worker processes; over none: of this process."""
        if not processes or not workers:
            return cls(threads=workers)
        shares = (workers // processes + (n < workers % processes) for n in range(processes))
        return cls(processes=tuple(shares))

    def __str__(self) -> str:
        if not self.processes:
            many = _counted(self.threads, "thread")
            return f"{many} of this process" if self.threads else "the consumer's own thread"
        low, high = min(self.processes), max(self.processes)
        threads = _counted(high, "thread") if low == high else f"{low} to {high} threads"
        each = " each" if len(self.processes) > 1 else ""
        return f"{_counted(len(self.processes), 'process', 'es')} of {threads}{each}"


def demanded_formation(
    compute: Callable[[BatchTask], Delivery], settings: LoaderSettings
) -> Formation | None:
    """The formation that settings and components leave no choice of; None if they do.

    Raises:
        ValueError: A component needs a process of its own and may not have one.
    """
    workers, processes = settings.workers, settings.processes
    if workers and getattr(compute, "global_random", False):
        if processes == 0:
            raise ValueError(
                "loader.processes is 0, and a component draws from global random states, which "
                "threads share; set loader.processes=null for a process per worker, or "
                "loader.num_workers=0"
            )
        return Formation.spread(workers, workers)
    if not workers or processes is not None:
        return Formation.spread(workers, processes or 0)
    return None


def import_crew(formation: Formation) -> None:
    """Import what `start_crew` needs, so that the first batch does not wait for it."""
    if formation.threads:
        import pipeline.loader.ring.threads  # noqa: F401


def start_crew(
    formation: Formation, compute: Callable[..., Delivery], settings: LoaderSettings
) -> Crew:
    """Start the threads and processes of a formation."""
    if not formation.processes and not formation.threads:
        from pipeline.loader.ring.here import ConsumerCrew

        return ConsumerCrew(compute, memory=host_memory(settings))
    if settings.num_workers != "auto":
        warn_about_cores(settings.workers)
    ahead = settings.read_ahead if reads_ahead(compute, settings.read_ahead) else 0
    depth = settings.workers * settings.prefetch_factor + ahead
    if formation.processes:
        from pipeline.loader.ring.processes import ProcessCrew

        return ProcessCrew(
            compute,
            settings,
            threads=formation.processes,
            depth=depth,
            read_ahead=ahead,
            locks=host_memory(settings),
        )
    from pipeline.loader.ring.threads import ThreadCrew

    computer: Any = compute
    return ThreadCrew(
        compute,
        formation.threads,
        depth=depth,
        timeout_s=settings.timeout_s,
        memory=host_memory(settings),
        reader=ReadAhead(computer.read, ahead) if ahead else None,
    )


def _counted(number: int, noun: str, plural: str = "s") -> str:
    return f"{number} {noun}{'' if number == 1 else plural}"
