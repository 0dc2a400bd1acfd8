"""Batches computed by whoever computes them fastest, which the first ones show."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from penstock.core.processes import why_no_processes
from penstock.core.registry import register
from penstock.pipeline.loader.engines.calibration import Calibration, Look, contenders, settled
from penstock.pipeline.loader.engines.pool import WorkerLayout, demanded_layout
from penstock.pipeline.loader.engines.pool_engine import PoolEngine

if TYPE_CHECKING:
    from penstock.pipeline.loader.compute import BatchComputer
    from penstock.pipeline.loader.settings import LoaderSettings


@register("engine", "auto")
class AutoEngine(PoolEngine):
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

    def __init__(self, compute: BatchComputer, settings: LoaderSettings) -> None:
        demanded = demanded_layout(compute, settings)
        if demanded is not None:
            calibration = settled(demanded, "as asked for")
        else:
            calibration = Calibration(
                WorkerLayout(settings.workers),
                # Of what `self` holds, nothing holds it: a forgotten loader's threads end at once.
                partial(worth_trying, settings),
                depth=settings.workers * settings.prefetch_factor,
            )
        super().__init__(compute, settings, calibration)


def worth_trying(settings: LoaderSettings, look: Look) -> tuple[list[WorkerLayout], str]:
    """Choose the contenders that these settings allow; say why, or why nothing is tried."""
    found, reason = contenders(look, settings.workers)
    if settings.num_workers != "auto":  # asked for, so they are to work
        found = [layout for layout in found if layout != WorkerLayout()]
    if any(layout.processes for layout in found):
        obstacle = why_no_processes(settings.multiprocessing_context)
        if obstacle is not None:
            return [], f"{reason}, but {obstacle}"
    return found, reason
