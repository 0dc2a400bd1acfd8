"""Batches computed by the worker processes of torch's DataLoader."""

from __future__ import annotations

import atexit
import os
import queue
import time
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from multiprocessing.process import BaseProcess, active_children
from multiprocessing.reduction import ForkingPickler
from typing import TYPE_CHECKING, Any

from penstock.core.processes import (
    end_with_parent,
    ensure_server,
    interrupts_held,
    leave_signals_to_parent,
    start_deadline,
    worker_context,
)
from penstock.core.registry import register
from penstock.pipeline.loader.contract import BatchTask, Delivery
from penstock.pipeline.loader.engines.batch_memory import pins
from penstock.pipeline.loader.engines.inline import InlineEngine
from penstock.pipeline.loader.engines.pool import warn_about_cores
from penstock.pipeline.loader.engines.slots import is_plain, tensor_of
from penstock.pipeline.loader.engines.worker import PRELOADED, Payload, use_one_thread
from penstock.pipeline.loader.placement import Placement, placement_of
from penstock.pipeline.loader.worker_errors import (
    Failure,
    LoaderClosedError,
    LoaderTimeoutError,
    WorkerError,
    describe_death,
)

if TYPE_CHECKING:
    import torch

    from penstock.pipeline.loader.compute import BatchComputer
    from penstock.pipeline.loader.settings import LoaderSettings

_TICK_S = 0.5
_INLINE_BYTES = 16_384


@register("engine", "torch")
class TorchEngine:
    """torch's DataLoader, given one whole batch per item.

    Args:
        compute: A task to a delivery; sent to the workers.
        settings: Number of workers, how they start and how far they compute ahead.
    """

    def __init__(self, compute: BatchComputer, settings: LoaderSettings) -> None:
        self._compute = compute
        self._settings = settings
        self._feed = _Feed()
        self._loader: Any = None
        self._iterator: Any = None

    @property
    def choice(self) -> str:
        """Say who computes."""
        return f"{self._settings.workers} workers of torch's DataLoader"

    def run(self, tasks: Iterator[BatchTask]) -> Iterator[Delivery]:
        """Deliver every task, in order.

        Raises:
            WorkerError: A worker process died; the message says how and what to do.
            LoaderTimeoutError: No batch came within `timeout_s`.
            ValueError: The data set cannot be sent to workers.
        """
        if not self._settings.workers:
            yield from InlineEngine(self._compute, self._settings).run(tasks)
            return
        try:
            for outcome in self._start(tasks):
                if isinstance(outcome, Failure):
                    outcome.raise_error()
                yield outcome
                del outcome
        except LoaderTimeoutError:
            for worker in self._workers():
                worker.kill()  # it hangs: waiting for it to end by itself would take long
            self.close()
            raise
        except RuntimeError as error:
            death = describe_death(self._workers())
            if death is None:
                raise
            self.close()
            raise WorkerError(death) from error
        finally:
            if not self._settings.persistent_workers:
                self.close()

    def close(self) -> None:
        """End the workers; the next run starts new ones."""
        iterator, self._iterator, self._loader = self._iterator, None, None
        if iterator is not None:
            iterator._data_queue.end()
            iterator._shutdown_workers()
            for tasks in iterator._index_queues:
                _wait_for_feeder(tasks)

    def _workers(self) -> Sequence[BaseProcess]:
        return () if self._iterator is None else self._iterator._workers

    def _start(self, tasks: Iterator[BatchTask]) -> Iterator[Any]:
        """An iterator over the outcomes; persistent workers drop what they were at."""
        self._feed.tasks = tasks
        if self._loader is None:
            self._loader = self._make_loader()
        settings, before = self._settings, set(active_children())
        server = ensure_server(settings.multiprocessing_context)
        try:
            with interrupts_held(), _torch_advice_left_out(), start_deadline(settings.timeout_s):
                self._iterator = iter(self._loader)
        except (EOFError, ConnectionError) as error:
            self._loader = None
            if server is None:
                raise
            for worker in set(active_children()) - before:
                worker.kill()
            raise WorkerError(
                f"loader: process {server}, which forks the worker processes, ended, or was ended "
                f"because it hung; start them without it: loader.multiprocessing_context=spawn"
            ) from error
        except (TypeError, AttributeError) as error:
            if "pickle" not in str(error):
                raise
            raise ValueError(
                f"loader: the data set cannot be sent to workers: {error}; use "
                f"loader.multiprocessing_context=fork or loader.num_workers=0"
            ) from error
        if not isinstance(self._iterator._data_queue, WatchedQueue):
            _let_torch_forget(self._iterator)
            self._iterator._data_queue = WatchedQueue(
                self._iterator._data_queue, self._workers(), self._settings.timeout_s
            )
        return self._iterator

    def _make_loader(self) -> Any:
        import torch
        from torch.utils.data import DataLoader

        settings = self._settings
        warn_about_cores(settings)
        _raise_file_limit()
        with _torch_advice_left_out():
            return DataLoader(
                _Batches(self._compute),  # type: ignore[arg-type]
                batch_size=None,
                sampler=self._feed,
                collate_fn=_as_it_is,
                num_workers=settings.workers,
                pin_memory=pins(settings),
                # Without one, every epoch draws a seed from torch's global generator.
                generator=torch.Generator(),
                multiprocessing_context=worker_context(settings.multiprocessing_context, PRELOADED),
                persistent_workers=settings.persistent_workers,
                prefetch_factor=settings.prefetch_factor,
                worker_init_fn=partial(_start_worker, placement_of(settings)),
            )


class _Feed:
    """The sampler that a DataLoader asks for items: the tasks of the run at hand."""

    tasks: Iterator[BatchTask] = iter(())

    def __iter__(self) -> Iterator[BatchTask]:
        return self.tasks


class _Batches:
    """A dataset to a DataLoader: a task is an index, a delivery its item."""

    def __init__(self, compute: BatchComputer) -> None:
        self._payload = Payload(compute, compute.imports)

    def __getitem__(self, task: BatchTask) -> Delivery | Failure:
        try:
            return self._payload.value(task)
        except Exception as error:
            return Failure.of(error)


def _as_it_is(item: Any) -> Any:
    return item


def _start_worker(placement: Placement, worker_id: int) -> None:
    """Set a new worker process up."""
    import torch

    placement.enter_process()
    leave_signals_to_parent()
    # A spawned process is torn down in full, and now and then a native thread that is still
    # there aborts it, which the main process takes for the death of a worker at work.
    atexit.register(os._exit, 0)
    # Torch's worker looks for another parent than the one it began with: a main process that was
    # killed before the worker came to look left it waiting for ever.
    end_with_parent()
    use_one_thread()
    ForkingPickler.register(torch.Tensor, _reduced)


def _reduced(tensor: torch.Tensor) -> Any:
    """Let a small tensor travel inside the message.

    Each larger one takes a shared-memory segment, and with it a descriptor for as long as somebody
    keeps the batch.
    """
    import torch
    from torch.multiprocessing.reductions import reduce_tensor

    if tensor.nbytes > _INLINE_BYTES or not is_plain(tensor):
        return reduce_tensor(tensor)
    content = bytearray(tensor.flatten().view(torch.uint8).numpy())
    return tensor_of, (content, tensor.dtype, tuple(tensor.shape), None)


class WatchedQueue:
    """A queue of results that stops waiting when a worker died or the deadline passed.

    torch's own wait looks at its workers only when its timeout is over, and that timeout is
    the user's patience with a slow batch.

    Args:
        results: The queue to wait on.
        workers: The processes that fill it.
        timeout_s: Seconds after which waiting is given up.
    """

    def __init__(self, results: Any, workers: Sequence[BaseProcess], timeout_s: float) -> None:
        self._results = results
        self._workers = workers
        self._timeout_s = timeout_s
        self._closed = False

    def end(self) -> None:
        """The workers are ended on purpose: let whoever waits know."""
        self._closed = True

    def get(self, block: bool = True, timeout: float | None = None) -> Any:
        """The next result; `queue.Empty` if a worker died, an error after the deadline."""
        deadline = time.monotonic() + self._timeout_s
        while True:
            remaining_s = deadline - time.monotonic()
            try:
                return self._results.get(timeout=max(0.0, min(_TICK_S, remaining_s)))
            except (queue.Empty, OSError, ValueError) as error:
                if self._closed:  # and the queue perhaps with it
                    raise LoaderClosedError from None
                if not isinstance(error, queue.Empty):
                    raise
                if not all(worker.is_alive() for worker in self._workers):
                    raise
                if remaining_s <= 0:
                    raise LoaderTimeoutError(
                        f"loader: no batch within timeout_s={self._timeout_s:g} s, and all "
                        f"{len(self._workers)} workers are alive; raise loader.timeout_s if "
                        f"reading is that slow, or find where it hangs with loader.engine=inline"
                    ) from None

    def __getattr__(self, name: str) -> Any:
        return getattr(self._results, name)


def _wait_for_feeder(tasks: Any) -> None:
    """Wait until the thread that writes a queue's items has let go of the queue's semaphores.

    Torch does not: where the interpreter ends meanwhile, that thread is stopped between removing
    a semaphore and telling multiprocessing's tracker, which then warns of a leak.
    """
    if tasks._thread is not None:
        tasks._thread.join(_TICK_S)


def _let_torch_forget(iterator: Any) -> None:
    """Keep torch from raising, wherever the main thread is, when a worker that we end ends.

    The queue of results is watched, which finds workers that die by themselves.
    """
    from torch.utils.data._utils import signal_handling

    signal_handling._remove_worker_pids(id(iterator))
    iterator._worker_pids_set = False


@contextmanager
def _torch_advice_left_out() -> Iterator[None]:
    """Leave out torch's warning about the number of workers; ours is said once."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="This DataLoader will create")
        yield


def _raise_file_limit() -> None:
    """Every tensor that arrives keeps one descriptor open for as long as it lives."""
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = 65_536 if hard == resource.RLIM_INFINITY else min(hard, 65_536)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        with suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
