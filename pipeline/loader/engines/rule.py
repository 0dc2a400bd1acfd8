"""The rule that picks an engine where ``loader.engine`` names none."""

from __future__ import annotations

import pickle
import sys
from typing import TYPE_CHECKING

from penstock.core.processes import why_no_processes
from penstock.pipeline.loader.engines.pool import demanded_layout

if TYPE_CHECKING:
    from penstock.pipeline.loader.compute import BatchComputer
    from penstock.pipeline.loader.settings import LoaderSettings


def engine_by_rule(compute: BatchComputer, settings: LoaderSettings) -> tuple[str, str]:
    """Return the name of an engine, and the reason for it.

    No workers compute inline, batches that are made as columns come from threads, and all others
    from processes. Where processes cannot start, threads compute.

    Raises:
        ValueError: A component needs a process of its own, and processes cannot start.
    """
    demanded_layout(compute, settings)
    if not settings.workers:
        return "inline", "loader.num_workers is 0"
    if not compute.global_random:
        if settings.processes is not None:
            engine = "processes" if settings.processes else "threads"
            return engine, f"loader.processes is {settings.processes}"
        if compute.can.way == "columns":
            return "threads", "each batch is made as columns"
    obstacle = _why_no_workers(compute, settings)
    if obstacle is not None:
        if compute.global_random:
            raise ValueError(
                f"loader: a component draws from global random states, which threads share, and "
                f"worker processes cannot start: {obstacle}; type loader=inline"
            )
        return "threads", f"worker processes cannot start: {obstacle}"
    if compute.global_random:
        return "processes", "a component draws from global random states"
    return "processes", "each sample is made on its own"


def _why_no_workers(compute: BatchComputer, settings: LoaderSettings) -> str | None:
    """Say why worker processes of this program would fail; None if they can start."""
    if settings.multiprocessing_context == "fork":  # imports nothing, and pickles nothing
        return None
    if (reason := why_no_processes()) is not None:
        return reason
    sent = _Sent()
    try:
        pickle.Pickler(sent).dump(compute)
    except RuntimeError:  # a lock or a queue of multiprocessing, which only a start can send
        return None
    except (TypeError, AttributeError, pickle.PicklingError) as error:
        return f"the data set cannot be sent to them: {error}"
    if getattr(sys.modules["__main__"], "__file__", None) is None and sent.names_main:
        return "a component is defined at a prompt or in a notebook, and they can import only files"
    return None


class _Sent:
    """A file that keeps nothing: data may be large.

    Attributes:
        names_main: Something in it is defined in ``__main__``.
    """

    names_main = False

    def write(self, data: bytes) -> None:
        """Look at a part of the pickled data."""
        self.names_main |= b"__main__" in bytes(data)
