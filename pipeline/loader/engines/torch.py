"""Batches computed by the worker processes of torch's DataLoader."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from itertools import chain, islice
from multiprocessing.process import BaseProcess
from typing import TYPE_CHECKING, Any

from pipeline.loader.contract import BatchTask, Delivery
from pipeline.loader.shared_memory import check_shared_memory
from pipeline.loader.starting import interrupts_held, server_used, warn_about_cores
from pipeline.loader.watch import LoaderTimeoutError, WatchedQueue, describe_death
from pipeline.loader.worker import Failure, WorkerDataset, WorkerError, identity, start_worker
from pipeline.loader.worker_context import worker_context
from pipeline.registry import register

if TYPE_CHECKING:
    from pipeline.loader.settings import LoaderSettings


@register("engine", "torch")
class TorchEngine:
    """torch's DataLoader, given one whole batch per item.

    Args:
        compute: A task to a delivery; sent to the workers.
        settings: Number of workers, how they start and how far they compute ahead.
    """

    def __init__(self, compute: Callable[[BatchTask], Delivery], settings: LoaderSettings) -> None:
        self._compute = compute
        self._settings = settings
        self._feed = _Feed()
        self._loader: Any = None
        self._iterator: Any = None

    @property
    def choice(self) -> str:
        """Who computes, in words."""
        return f"{self._settings.workers} workers of torch's DataLoader"

    def run(self, tasks: Iterator[BatchTask]) -> Iterator[Delivery]:
        """Deliver every task, in order.

        Raises:
            WorkerError: A worker process died; the message says how and what to do.
            LoaderTimeoutError: No batch came within `timeout_s`.
            ValueError: /dev/shm cannot hold the batches in flight.
        """
        if self._iterator is None and self._settings.workers:
            tasks = self._with_first_checked(tasks)
        try:
            iterator = self._start(tasks)
            while True:
                try:
                    outcome = next(iterator)
                except StopIteration:
                    break
                if isinstance(outcome, Failure):
                    outcome.raise_error()
                yield outcome
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
        if hasattr(iterator, "_shutdown_workers"):
            if isinstance(iterator._data_queue, WatchedQueue):
                iterator._data_queue.end()
            iterator._shutdown_workers()

    def _workers(self) -> Sequence[BaseProcess]:
        return getattr(self._iterator, "_workers", ())

    def _with_first_checked(self, tasks: Iterator[BatchTask]) -> Iterator[BatchTask]:
        first = list(islice(tasks, 1))
        if first:
            settings = self._settings
            in_flight = settings.workers * settings.prefetch_factor + 1
            check_shared_memory(self._compute, first[0], in_flight=in_flight)
        return chain(first, tasks)

    def _start(self, tasks: Iterator[BatchTask]) -> Iterator[Any]:
        """An iterator over the outcomes; persistent workers drop what they were at."""
        self._feed.tasks = tasks
        if self._loader is None:
            self._loader = self._make_loader()
        try:
            with interrupts_held(), server_used(id(self)), _torch_advice_left_out():
                self._iterator = iter(self._loader)
        except (TypeError, AttributeError) as error:
            if "pickle" not in str(error):
                raise
            raise ValueError(
                f"loader: the data set cannot be sent to workers: {error}; use "
                f"loader.multiprocessing_context=fork or loader.num_workers=0"
            ) from error
        workers = self._workers()
        if workers and not isinstance(self._iterator._data_queue, WatchedQueue):
            _let_torch_forget(self._iterator)
            self._iterator._data_queue = WatchedQueue(
                self._iterator._data_queue, workers, self._settings.timeout_s
            )
        return self._iterator

    def _make_loader(self) -> Any:
        import torch
        from torch.utils.data import DataLoader

        settings = self._settings
        arguments: dict[str, Any] = {}
        if settings.workers:
            warn_about_cores(settings.workers)
            _raise_file_limit()
            arguments = {
                "multiprocessing_context": worker_context(settings.multiprocessing_context),
                "persistent_workers": settings.persistent_workers,
                "prefetch_factor": settings.prefetch_factor,
                "worker_init_fn": start_worker,
            }
        with _torch_advice_left_out():
            return DataLoader(
                WorkerDataset(self._compute),  # type: ignore[arg-type]
                batch_size=None,
                sampler=self._feed,
                collate_fn=identity,
                num_workers=settings.workers,
                pin_memory=settings.pin_memory is not False and torch.cuda.is_available(),
                # Without one, every epoch draws a seed from torch's global generator.
                generator=torch.Generator(),
                **arguments,
            )


class _Feed:
    """The sampler that a DataLoader asks for items: the tasks of the run at hand."""

    tasks: Iterator[BatchTask] = iter(())

    def __iter__(self) -> Iterator[BatchTask]:
        return self.tasks


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
