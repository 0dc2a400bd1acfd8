"""Compute batches in the workers of torch's DataLoader, through its public interface."""

from __future__ import annotations

import multiprocessing
import os
import pickle
import sys
import threading
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from multiprocessing.process import BaseProcess, active_children
from types import ModuleType
from typing import TYPE_CHECKING, Any

from penstock.core.processes.child import leave_signals_to_parent
from penstock.core.registry import register
from penstock.pipeline.loader.contract import (
    BatchTask,
    Delivery,
    Executor,
    Future,
    mapped,
    to_tensor,
)
from penstock.pipeline.loader.executors.processes import recipe_of
from penstock.pipeline.loader.worker import use_one_thread
from penstock.pipeline.loader.worker_errors import (
    Failure,
    LoaderClosedError,
    LoaderTimeoutError,
    WorkerError,
)

if TYPE_CHECKING:
    from penstock.pipeline.loader.compute import BatchComputer
    from penstock.pipeline.loader.settings import LoaderSettings

_PRELOADED = [
    "penstock.core.processes.fork_server",
    "penstock.pipeline.loader.executors.torch",
    "torch.utils.data",
    "cv2",
]
_imported_in = os.getpid()


@register("engine", "torch")
class TorchExecutor(Executor):
    """Compute batches in torch's DataLoader, one batch per item; a dead worker ends the run."""

    in_turn = True
    times_out = True

    def __init__(self, compute: BatchComputer, settings: LoaderSettings) -> None:
        import torch
        from torch.utils.data import DataLoader

        # One more than DataLoader prefetches, so that the feed is never empty.
        self.depth = settings.workers * settings.prefetch_factor + 1
        self._timeout_s = settings.timeout_s
        self._tasks: deque[BatchTask] = deque()
        self._iterator: Any = None
        self._workers: list[BaseProcess] = []
        self._timed_out = False
        # A forked process cannot use the fork server of its parent.
        method = "forkserver" if os.getpid() == _imported_in else "spawn"
        context = multiprocessing.get_context(settings.multiprocessing_context or method)
        if context.get_start_method() == "forkserver":
            context.set_forkserver_preload(_PRELOADED)
        self._loader: Any = DataLoader(
            _Batches(recipe_of(compute)),  # type: ignore[arg-type]
            batch_size=None,
            sampler=_Feed(self._tasks),
            num_workers=settings.workers,
            # Without one, every epoch draws a seed from torch's global generator.
            generator=torch.Generator(),
            multiprocessing_context=context,
            persistent_workers=True,
            prefetch_factor=settings.prefetch_factor,
            worker_init_fn=partial(_start_worker, settings),
        )

    def submit(self, tasks: Sequence[BatchTask]) -> Future:
        """Queue a task for the DataLoader."""
        self._tasks.append(tasks[0])
        return Future(self._receive)

    def _receive(self) -> list[Delivery | BaseException]:
        """Return the next item of the DataLoader: results are taken in order."""
        if self._loader is None:
            raise LoaderClosedError
        # A DataLoader with a timeout looks after its workers only after the timeout.
        timer = threading.Timer(self._timeout_s, self._give_up)
        timer.daemon = True
        timer.start()
        try:
            if self._iterator is None:
                before = set(active_children())
                with _without_main():
                    self._iterator = iter(self._loader)
                self._workers += set(active_children()) - before
            outcome = next(self._iterator)
        except (RuntimeError, OSError, EOFError) as error:
            if self._loader is None:
                raise LoaderClosedError from None
            if self._timed_out:
                raise LoaderTimeoutError(
                    f"loader: no batch within timeout_s={self._timeout_s:g} s; raise "
                    f"loader.timeout_s, or find where it hangs with loader.engine=inline"
                ) from error
            raise WorkerError(
                f"loader: {str(error).splitlines()[0]}; if it was killed, often the system ran out "
                f"of memory: lower loader.num_workers, loader.prefetch_factor or loader.batch_size"
            ) from error
        finally:
            timer.cancel()
        return [outcome.exception() if isinstance(outcome, Failure) else outcome]

    def _give_up(self) -> None:
        """Kill hanging workers; the DataLoader then raises."""
        self._timed_out = all(worker.is_alive() for worker in self._workers)
        for worker in self._workers:
            worker.kill()

    def drop(self) -> None:
        """Forget the tasks; workers drop their batches when the next run begins."""
        self._tasks.clear()
        self._iterator = None

    def close(self) -> None:
        """Kill the workers: waiting or hanging workers ignore multiprocessing's SIGTERM at exit."""
        self.drop()
        self._loader = None
        for worker in self._workers:
            worker.kill()


@contextmanager
def _without_main() -> Iterator[None]:
    """Start workers that do not run the program again, which may come from standard input."""
    main, sys.modules["__main__"] = sys.modules["__main__"], ModuleType("__main__")
    try:
        yield
    finally:
        sys.modules["__main__"] = main


class _Feed:
    """The DataLoader's sampler: the tasks of the current run."""

    def __init__(self, tasks: deque[BatchTask]) -> None:
        self._tasks = tasks

    def __iter__(self) -> Iterator[BatchTask]:
        while self._tasks:
            yield self._tasks.popleft()


class _Batches:
    """A dataset whose index is a task and whose item is a delivery."""

    def __init__(self, recipe: bytes) -> None:
        self._recipe = recipe
        self._compute: BatchComputer | None = None

    def __getitem__(self, task: BatchTask) -> Delivery | Failure:
        try:
            if self._compute is None:
                self._compute = pickle.loads(self._recipe).value
            use_one_thread()
            [outcome] = self._compute.several([task])
            if isinstance(outcome, BaseException):
                return Failure.of(outcome)
            # Tensors travel in shared memory; arrays would be copied into a pipe.
            return replace(outcome, batch=mapped(outcome.batch, to_tensor))
        except Exception as error:
            return Failure.of(error)


def _start_worker(settings: LoaderSettings, worker_id: int) -> None:
    settings.apply_to_worker()
    leave_signals_to_parent()
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    """End this process with the trainer: torch's own watch waits for an idle worker."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)
