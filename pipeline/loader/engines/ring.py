"""Batches computed by threads, of this process or of worker processes that are watched over."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator
from operator import itemgetter
from typing import TYPE_CHECKING

from pipeline.loader.contract import BatchTask, Delivery
from pipeline.loader.ring.board import Crew
from pipeline.loader.ring.delivering import deliver
from pipeline.loader.ring.formation import Formation, demanded_formation, import_crew, start_crew
from pipeline.loader.starting import interrupts_held, preload
from pipeline.registry import register

if TYPE_CHECKING:
    from pipeline.loader.settings import LoaderSettings


@register("engine", "ring")
class RingEngine:
    """Our own engine: ``num_workers`` threads, spread over ``processes`` processes.

    Idle threads take the next task; deliveries come in the order of the tasks, at most
    ``num_workers * prefetch_factor + read_ahead`` of them computed ahead. Small batches that need
    no work per sample are computed in bundles, of 16 and 6 MB at most, each of which counts there
    as one. With ``processes=0`` the threads are of this process: the least memory, and the fastest
    start. With more, batches lie in memory that both sides map, and a process that dies or hangs
    is replaced.

    ``processes=null`` takes threads of this process, unless a component draws from global
    random states: then each worker is a process of one thread.

    Args:
        compute: A task to a delivery.
        settings: Number of workers and processes, and how far they compute ahead.

    Raises:
        ValueError: A component needs a process of its own and may not have one.
    """

    def __init__(self, compute: Callable[..., Delivery], settings: LoaderSettings) -> None:
        self._compute = compute
        self._settings = settings
        self._formation = demanded_formation(compute, settings) or Formation(settings.workers)
        import_crew(self._formation)
        self._crew: Crew | None = None
        self._finalizer: weakref.finalize[..., RingEngine] | None = None
        if self._formation.processes:
            preload(settings.multiprocessing_context)

    @property
    def choice(self) -> str:
        """Who computes, in words."""
        return str(self._formation)

    def run(self, tasks: Iterator[BatchTask]) -> Iterator[Delivery]:
        """Deliver every task, in order.

        Raises:
            LoaderTimeoutError: No batch came within `timeout_s` from threads of this process.
            WorkerError: Worker processes cannot be started, or a batch ends every one of them.
            ValueError: The data set cannot be sent to worker processes.
        """
        crew = self._crew if self._crew is not None and self._crew.is_own else self._start()
        intact = False
        try:
            yield from map(itemgetter(1), deliver(tasks, lambda: crew))
            intact = True
        except GeneratorExit:
            intact = True
            raise
        finally:
            crew.drop()
            # After an error nothing is known of the workers: threads may hang.
            if not (intact and self._settings.persistent_workers) and self._crew is crew:
                self.close()

    def close(self) -> None:
        """End threads and processes; the next run starts new ones."""
        crew, self._crew = self._crew, None
        if self._finalizer is not None:
            self._finalizer.detach()
        if crew is not None:
            crew.close()

    def _start(self) -> Crew:
        with interrupts_held():
            crew = self._crew = start_crew(self._formation, self._compute, self._settings)
            self._finalizer = weakref.finalize(self, crew.close)
            self._finalizer.atexit = False  # then the crew sees to it by itself
        return crew
