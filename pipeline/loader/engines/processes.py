"""Batches computed by threads of worker processes, which are replaced when they die or hang."""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.core.registry import register
from penstock.pipeline.loader.engines.pool import WorkerLayout
from penstock.pipeline.loader.engines.pool_engine import PoolEngine

if TYPE_CHECKING:
    from penstock.pipeline.loader.compute import BatchComputer
    from penstock.pipeline.loader.settings import LoaderSettings


@register("engine", "processes")
class ProcessesEngine(PoolEngine):
    """``num_workers`` threads spread over ``processes`` worker processes; null: one in each.

    Batches lie in memory that both sides map. A process that dies or hangs is replaced, what it
    was at is computed again, and a record that kills its process is quarantined. A component
    that draws from global random states gets processes of one thread.

    Args:
        compute: A task to a delivery; sent to the processes.
        settings: Number of workers and processes, and how far they compute ahead.
    """

    def __init__(self, compute: BatchComputer, settings: LoaderSettings) -> None:
        super().__init__(compute, settings, layout_of_processes(compute, settings))


def layout_of_processes(compute: BatchComputer, settings: LoaderSettings) -> WorkerLayout:
    """The workers, spread over the processes that are asked for; by default one in each."""
    processes = settings.workers if compute.global_random else settings.processes
    return WorkerLayout.spread(settings.workers, processes or settings.workers)
