"""Batches computed by threads, of this process or of worker processes that are watched over."""

from __future__ import annotations

import weakref
from collections import deque
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from pipeline.loader.contract import BatchTask, Delivery
from pipeline.loader.host_memory import host_memory
from pipeline.loader.read_ahead import ReadAhead, reads_ahead
from pipeline.loader.ring.board import Crew
from pipeline.loader.ring.slabs import compute_into_slabs
from pipeline.loader.starting import preload, warn_about_cores
from pipeline.registry import register

if TYPE_CHECKING:
    from pipeline.loader.settings import LoaderSettings


@register("engine", "ring")
class RingEngine:
    """Our own engine: ``num_workers`` threads, spread over ``processes`` processes.

    Idle threads take the next task; deliveries come in the order of the tasks, at most
    ``num_workers * prefetch_factor + read_ahead`` of them computed ahead. With ``processes=0``
    the threads are of this process: the least memory, and the fastest start. With more, batches
    lie in memory that both sides map, and a process that dies or hangs is replaced.

    ``processes=null`` takes threads of this process, unless a component draws from global
    random states: then each worker is a process of one thread.

    Args:
        compute: A task to a delivery.
        settings: Number of workers and processes, and how far they compute ahead.

    Raises:
        ValueError: A component needs a process of its own and may not have one.
    """

    def __init__(self, compute: Callable[..., Delivery], settings: LoaderSettings) -> None:
        self._compute: Any = compute
        self._settings = settings
        self._threads = threads_by_process(compute, settings)
        self._read_ahead = settings.read_ahead if reads_ahead(compute, settings.read_ahead) else 0
        self._crew: Crew | None = None
        self._finalizer: weakref.finalize[..., RingEngine] | None = None
        self._ticket = 0
        if self._threads:
            preload(settings.multiprocessing_context)

    def run(self, tasks: Iterator[BatchTask]) -> Iterator[Delivery]:
        """Deliver every task, in order.

        Raises:
            LoaderTimeoutError: No batch came within `timeout_s` from threads of this process.
            WorkerError: Worker processes cannot be started, or a batch ends every one of them.
            ValueError: The data set cannot be sent to worker processes.
        """
        if not self._settings.num_workers:
            yield from self._computed_here(tasks)
            return
        crew = self._crew or self._start()
        source = _UntilError(tasks)
        ahead: deque[int] = deque()
        intact = False
        try:
            self._submit(crew, source, ahead)
            while ahead:
                delivery = crew.take(ahead.popleft())
                self._submit(crew, source, ahead)
                yield delivery
                del delivery
            intact = True
            if source.error is not None:
                raise source.error
        except GeneratorExit:
            intact = True
            raise
        finally:
            crew.drop()
            # After an error nothing is known of the workers: threads may hang.
            if not (intact and self._settings.persistent_workers):
                self.close()

    def close(self) -> None:
        """End threads and processes; the next run starts new ones."""
        crew, self._crew = self._crew, None
        if self._finalizer is not None:
            self._finalizer.detach()
        if crew is not None:
            crew.close()

    def _submit(self, crew: Crew, source: _UntilError, ahead: deque[int]) -> None:
        settings = self._settings
        most = settings.num_workers * settings.prefetch_factor + self._read_ahead
        while len(ahead) < most:
            task = next(source, None)
            if task is None:
                return
            crew.submit(self._ticket, task)
            ahead.append(self._ticket)
            self._ticket += 1

    def _start(self) -> Crew:
        settings = self._settings
        warn_about_cores(settings.num_workers)
        crew: Crew
        if self._threads:
            from pipeline.loader.ring.processes import ProcessCrew

            crew = ProcessCrew(
                self._compute,
                settings,
                threads=self._threads,
                read_ahead=self._read_ahead,
                locks=host_memory(settings),
            )
        else:
            from pipeline.loader.ring.threads import ThreadCrew

            ahead = self._read_ahead
            crew = ThreadCrew(
                self._compute,
                settings.num_workers,
                timeout_s=settings.timeout_s,
                memory=host_memory(settings),
                reader=ReadAhead(self._compute.read, ahead) if ahead else None,
            )
        self._crew = crew
        self._finalizer = weakref.finalize(self, crew.close)
        self._finalizer.atexit = False  # then the crew sees to it by itself
        return crew

    def _computed_here(self, tasks: Iterator[BatchTask]) -> Iterator[Delivery]:
        memory = host_memory(self._settings)
        for task in tasks:
            if memory is None:
                yield self._compute(task)
            else:
                yield compute_into_slabs(self._compute, task, memory)


class _UntilError:
    """Tasks until they end or raise, so that what came before an error is delivered first."""

    def __init__(self, tasks: Iterator[BatchTask]) -> None:
        self._tasks = tasks
        self.error: Exception | None = None

    def __iter__(self) -> Iterator[BatchTask]:
        return self

    def __next__(self) -> BatchTask:
        if self.error is not None:
            raise StopIteration
        try:
            return next(self._tasks)
        except StopIteration:
            raise
        except Exception as error:
            self.error = error
            raise StopIteration from None


def threads_by_process(
    compute: Callable[[BatchTask], Delivery], settings: LoaderSettings
) -> list[int]:
    """Threads of each worker process; none where threads of this process compute.

    Raises:
        ValueError: A component needs a process of its own and may not have one.
    """
    workers, processes = settings.num_workers, settings.processes
    if workers and getattr(compute, "global_random", False):
        if processes == 0:
            raise ValueError(
                "loader.processes is 0, and a component draws from global random states, which "
                "threads share; set loader.processes=null for a process per worker, or "
                "loader.num_workers=0"
            )
        return [1] * workers
    if not processes or not workers:
        return []
    return [workers // processes + (n < workers % processes) for n in range(processes)]
