"""Batches computed by whoever computes them fastest, which the first ones show."""

from __future__ import annotations

import logging
import weakref
from collections.abc import Callable, Iterator
from functools import partial
from typing import TYPE_CHECKING

from pipeline.loader.contract import BatchTask, Delivery
from pipeline.loader.ring.board import Crew
from pipeline.loader.ring.calibration import Calibration, Look, contenders, settled
from pipeline.loader.ring.delivering import deliver
from pipeline.loader.ring.formation import Formation, demanded_formation, import_crew, start_crew
from pipeline.loader.starting import end_unused_server, interrupts_held, preload, why_no_processes
from pipeline.registry import register

if TYPE_CHECKING:
    from pipeline.loader.settings import LoaderSettings

_logger = logging.getLogger(__name__)


@register("engine", "auto")
class AutoEngine:
    """Threads of this process at first; then whatever makes the consumer's loop go fastest.

    The first batches come from threads of this process and are looked at. Where something else
    may be faster (see `contenders`), it is started in the background, and computes some of the
    next batches while the loop is timed. Which batches those are, and what is in them, does not
    depend on it. The choice holds for all following epochs.

    There is nothing to choose, and nothing is tried, where `processes` is given, where there
    are no workers, and where a component draws from global random states.

    Args:
        compute: A task to a delivery.
        settings: Number of workers, which always holds, and how far they compute ahead.

    Raises:
        ValueError: A component needs a process of its own and may not have one.
    """

    def __init__(self, compute: Callable[[BatchTask], Delivery], settings: LoaderSettings) -> None:
        self._compute = compute
        self._settings = settings
        self._first = demanded_formation(compute, settings) or Formation(settings.workers)
        import_crew(self._first)
        if demanded_formation(compute, settings) is not None:
            self.calibration = settled(self._first)
        else:
            depth = settings.workers * settings.prefetch_factor
            # Of what `self` holds, nothing holds it: a forgotten loader's threads end at once.
            find = partial(worth_trying, settings)
            self.calibration = Calibration(self._first, find, depth=depth)
        self._crews: dict[Formation, Crew] = {}
        self._finalizers: dict[Formation, weakref.finalize[..., AutoEngine]] = {}
        self._is_settled = False
        if self._first.processes:
            preload(settings.multiprocessing_context)

    @property
    def choice(self) -> str:
        """Who computes, in words, and why."""
        return f"{self.calibration.formation} ({self.calibration.reason})"

    def run(self, tasks: Iterator[BatchTask]) -> Iterator[Delivery]:
        """Deliver every task, in order.

        Raises:
            LoaderTimeoutError: No batch came within `timeout_s` from threads of this process.
            WorkerError: Worker processes that computed already cannot be replaced, or a batch
                ends every one of them.
        """
        self.calibration.begin()
        self._forget_foreign()
        intact = False
        try:
            for crew, delivery in deliver(tasks, self._crew_of_next):
                looks = not self._is_settled
                if looks:
                    self._note(crew, delivery)
                handed = [delivery]
                del delivery  # kept nowhere here, however long the consumer takes
                yield handed.pop()
                if looks:
                    self.calibration.asked()
            intact = True
        except GeneratorExit:
            intact = True
            raise
        finally:
            for crew in self._crews.values():
                crew.drop()
            # After an error nothing is known of the workers: threads may hang.
            if not (intact and self._settings.persistent_workers):
                self.close()

    def _forget_foreign(self) -> None:
        """After a fork there are no workers here, whatever was copied."""
        if not all(crew.is_own for crew in self._crews.values()):
            self._crews.clear()
            self._finalizers.clear()

    def close(self) -> None:
        """End threads and processes; the next run starts new ones, of what was chosen."""
        for formation in list(self._crews):
            self._close(formation)
        self._is_settled = False

    def _crew_of_next(self) -> Crew:
        """The crew that should compute, or the first one while that is not ready yet."""
        while True:
            formation = self.calibration.formation
            crew = self._crews.get(formation) or self._start(formation)
            try:
                if crew.is_ready or formation == self._first:
                    return crew
            except Exception as error:  # why it never will be ready
                if self.calibration.is_over:  # it was chosen: it has computed before
                    raise
                self._close(formation)
                self.calibration.failed(str(error))
                continue
            return self._crews.get(self._first) or self._start(self._first)

    def _note(self, crew: Crew, delivery: Delivery) -> None:
        """Let the calibration know of a delivery, and end the crews that are not chosen."""
        formation = next(key for key, value in self._crews.items() if value is crew)
        calibration = self.calibration
        if not calibration.is_over:
            if delivery.number == 0:  # who knows what the consumer did between two epochs
                calibration.begin()
            calibration.delivered(formation, delivery.positions, crew.usage)
            if calibration.is_over:
                _logger.info("loader: computed by %s", self.choice)
        elif formation == calibration.formation:
            self._is_settled = True
            for other in [other for other in self._crews if other != formation]:
                self._close(other)
            if not formation.processes:
                end_unused_server()

    def _start(self, formation: Formation) -> Crew:
        with interrupts_held():
            crew = self._crews[formation] = start_crew(formation, self._compute, self._settings)
            self._finalizers[formation] = weakref.finalize(self, crew.close)
            self._finalizers[formation].atexit = False  # then the crew sees to it by itself
        return crew

    def _close(self, formation: Formation) -> None:
        self._finalizers.pop(formation).detach()
        self._crews.pop(formation).close()


def worth_trying(settings: LoaderSettings, look: Look) -> tuple[list[Formation], str]:
    """What of the contenders these settings allow, and why, or why nothing is tried."""
    found, reason = contenders(look, settings.workers)
    if settings.num_workers != "auto":  # asked for, so they are to work
        found = [formation for formation in found if formation != Formation()]
    if any(formation.processes for formation in found):
        obstacle = why_no_processes(settings.multiprocessing_context)
        if obstacle is not None:
            return [], f"{reason}, but {obstacle}"
    return found, reason
