"""Compute batches in the workers of torch's DataLoader, through its public interface."""

from __future__ import annotations

import atexit
import multiprocessing
import os
import pickle
import threading
import warnings
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from multiprocessing.connection import wait
from multiprocessing.process import BaseProcess, active_children
from typing import TYPE_CHECKING, Any

from penstock.core.child import leave_signals_to_parent
from penstock.core.registry import register
from penstock.pipeline.loader.contract import BatchTask, Delivery, Executor, Future
from penstock.pipeline.loader.executors.processes import recipe_of
from penstock.pipeline.loader.placement import Placement, placement_of, warn_about_cores
from penstock.pipeline.loader.worker import use_one_thread
from penstock.pipeline.loader.worker_errors import (
    Failure,
    LoaderClosedError,
    LoaderTimeoutError,
    WorkerError,
    describe_death,
)

if TYPE_CHECKING:
    from penstock.pipeline.loader.compute import BatchComputer
    from penstock.pipeline.loader.device.accelerator import PageLock
    from penstock.pipeline.loader.settings import LoaderSettings

_PRELOADED = [
    "penstock.core.fork_server",
    "penstock.pipeline.loader.executors.torch",
    "torch.utils.data",
    "cv2",
]
_imported_in = os.getpid()


@register("engine", "torch")
class TorchExecutor(Executor):
    """Compute batches in torch's DataLoader, one batch per item; a dead worker ends the run."""

    def __init__(self, compute: BatchComputer, settings: LoaderSettings) -> None:
        import torch
        from torch.utils.data import DataLoader

        warn_about_cores(settings)
        _raise_file_limit()
        # One more than DataLoader prefetches, so that the feed is never empty.
        self.depth = settings.workers * settings.prefetch_factor + 1
        self._timeout_s = settings.timeout_s
        self._feed = _Feed()
        self._futures: deque[_TorchFuture] = deque()
        self._iterator: Any = None
        self._workers: list[BaseProcess] = []
        self._timed_out = False
        self._owner = os.getpid()
        atexit.register(self.close)
        # A forked process cannot use the fork server of its parent.
        method = "forkserver" if os.getpid() == _imported_in else "spawn"
        context = multiprocessing.get_context(settings.multiprocessing_context or method)
        if context.get_start_method() == "forkserver":
            context.set_forkserver_preload(_PRELOADED)
        with _advice_left_out():
            self._loader: Any = DataLoader(
                _Batches(recipe_of(compute)),  # type: ignore[arg-type]
                batch_size=None,
                sampler=self._feed,
                collate_fn=_as_it_is,
                num_workers=settings.workers,
                # Without one, every epoch draws a seed from torch's global generator.
                generator=torch.Generator(),
                multiprocessing_context=context,
                persistent_workers=True,
                prefetch_factor=settings.prefetch_factor,
                worker_init_fn=partial(_start_worker, placement_of(settings)),
            )

    @classmethod
    def describe(cls, settings: LoaderSettings) -> str:
        """Describe the workers, for the log."""
        return f"{settings.workers} workers of torch's DataLoader"

    def page_lock(self, lock: PageLock) -> None:
        """Let DataLoader copy to page-locked memory, from its next iteration on."""
        self._loader.pin_memory = True

    def submit(self, tasks: Sequence[BatchTask], *, probes: bool = False) -> Future:
        """Queue a task for the DataLoader."""
        future = _TorchFuture(self)
        self._feed.tasks.append(tasks[0])
        self._futures.append(future)
        return future

    def receive(self) -> None:
        """Pass the next item of the DataLoader to the oldest future, or raise."""
        loader = self._loader
        if loader is None:
            raise LoaderClosedError
        # A DataLoader with a timeout checks its workers only after the timeout.
        timer = threading.Timer(self._timeout_s, self._give_up)
        timer.daemon = True
        timer.start()
        try:
            if self._iterator is None:
                before = set(active_children())
                with _advice_left_out():
                    self._iterator = iter(loader)
                self._workers += set(active_children()) - before
            outcome = next(self._iterator)
        except (RuntimeError, OSError, EOFError, ValueError) as error:
            if self._loader is None:
                raise LoaderClosedError from None
            raise self._explained(error) from error
        finally:
            timer.cancel()
        if self._loader is None:
            raise LoaderClosedError
        sent = outcome.exception() if isinstance(outcome, Failure) else outcome
        self._futures.popleft().set([sent])

    def _give_up(self) -> None:
        """Kill hanging workers; the DataLoader then raises."""
        self._timed_out = True
        for worker in self._workers:
            worker.kill()

    def _explained(self, error: Exception) -> Exception:
        if self._timed_out:
            return LoaderTimeoutError(
                f"loader: no batch within timeout_s={self._timeout_s:g} s; raise "
                f"loader.timeout_s if reading is that slow, or find where it hangs with "
                f"loader.engine=inline"
            )
        wait([worker.sentinel for worker in self._workers], timeout=1)  # a death takes a moment
        for worker in self._workers:
            worker.join(timeout=0)
            if not worker.is_alive():
                return WorkerError(describe_death(worker.pid, worker.exitcode))
        return error

    def drop(self) -> None:
        """Forget the tasks; workers drop their batches when the next run begins."""
        self._feed.tasks.clear()
        self._futures.clear()
        self._iterator = None

    def close(self) -> None:
        """Kill the workers: waiting or hanging workers ignore multiprocessing's SIGTERM at exit."""
        if os.getpid() != self._owner:
            return
        atexit.unregister(self.close)
        self.drop()
        self._loader = None
        for worker in self._workers:
            worker.kill()


class _TorchFuture(Future):
    __slots__ = ("_executor",)

    def __init__(self, executor: TorchExecutor) -> None:
        super().__init__()
        self._executor = executor

    def result(self, timeout_s: float | None = None) -> Sequence[Delivery | BaseException]:
        if not self.is_done:
            self._executor.receive()
        return super().result()


class _Feed:
    """The DataLoader's sampler: the tasks of the current run."""

    def __init__(self) -> None:
        self.tasks: deque[BatchTask] = deque()

    def __iter__(self) -> _Feed:
        return self

    def __next__(self) -> BatchTask:
        if not self.tasks:
            raise StopIteration
        return self.tasks.popleft()


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
            # Tensors travel in shared memory; arrays would be copied into a pipe.
            return self._compute(task).with_tensors
        except Exception as error:
            return Failure.of(error)

    def __getstate__(self) -> dict[str, Any]:
        return {"_recipe": self._recipe, "_compute": None}


def _as_it_is(item: Any) -> Any:
    return item


def _start_worker(placement: Placement, worker_id: int) -> None:
    placement.enter_process()
    leave_signals_to_parent()
    os.environ.setdefault("NO_ALBUMENTATIONS_UPDATE", "1")
    threading.Thread(target=_end_with_parent, name="end with parent", daemon=True).start()


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        wait([parent.sentinel])
        os._exit(1)


@contextmanager
def _advice_left_out() -> Iterator[None]:
    """Suppress torch's warning about the number of workers; `warn_about_cores` logs ours."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="This DataLoader will create")
        yield


def _raise_file_limit() -> None:
    """Raise the limit of open files; each tensor from a worker keeps a file open."""
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = 65_536 if hard == resource.RLIM_INFINITY else min(hard, 65_536)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        with suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
