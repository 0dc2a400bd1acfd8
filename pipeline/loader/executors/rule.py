"""The rule that picks an executor if ``loader.engine`` is null."""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.pipeline.loader.executors.processes import recipe_of

if TYPE_CHECKING:
    from penstock.pipeline.loader.compute import BatchComputer
    from penstock.pipeline.loader.settings import LoaderSettings


def engine_by_rule(compute: BatchComputer, settings: LoaderSettings) -> tuple[str, str]:
    """Return the name of an executor and the reason.

    No workers: inline. Global random states: processes. Batches made as columns, or components that
    do not pickle: threads. Everything else: processes.
    """
    if not settings.workers:
        return "inline", "loader.num_workers is 0"
    if compute.global_random:
        return "processes", "a component draws from global random states"
    if compute.way == "columns":
        return "threads", "each batch is made as columns"
    try:
        recipe_of(compute)
    except ValueError as error:
        return "threads", str(error).removeprefix("loader: ").partition(";")[0]
    return "processes", "each sample is made on its own"
