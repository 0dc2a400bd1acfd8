"""The worker's side of an engine: what is sent to it, and how its errors come back."""

from __future__ import annotations

import atexit
import multiprocessing.connection
import os
import pickle
import threading
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NoReturn

from pipeline.blame import is_explained
from pipeline.loader.contract import BatchTask, Delivery
from pipeline.loader.freed_memory import keep_freed_memory
from pipeline.loader.worker_context import leave_signals_to_main

if TYPE_CHECKING:
    from pipeline.loader.compute import BatchComputer


class WorkerError(RuntimeError):
    """An exception of a worker that could not be sent as it was, or the worker's own end."""


class WorkerTraceback(Exception):
    """Carries the traceback of a worker as text; the cause of the exception raised here."""

    from_worker = True

    def __str__(self) -> str:
        return f"\n{self.args[0]}"


@dataclass(frozen=True, slots=True)
class Failure:
    """An exception on its way from a worker to the consumer."""

    error: BaseException
    text: str
    explained: bool = False

    @classmethod
    def of(cls, error: BaseException) -> Failure:
        """The exception with its traceback as text, in a form that survives pickling."""
        explained = is_explained(error)
        lines = "".join(traceback.format_exception(error))
        text = f'in worker process {os.getpid()}:\n"""\n{lines}"""'
        try:
            pickle.loads(pickle.dumps(error))
        except Exception:
            notes = "; ".join(getattr(error, "__notes__", []))
            error = WorkerError(f"{type(error).__name__}: {error} ({notes})")
        return cls(error, text, explained)

    def raise_error(self) -> NoReturn:
        """Raise the exception here, with the worker's traceback as its cause if it needs one."""
        if self.explained:
            raise self.error
        raise self.error from WorkerTraceback(self.text)


class WorkerDataset:
    """What torch's DataLoader takes for a dataset: a task is an index, a delivery its item."""

    def __init__(self, compute: BatchComputer | Callable[[BatchTask], Delivery]) -> None:
        self._compute = compute

    def __getitem__(self, task: BatchTask) -> Delivery | Failure:
        from torch.utils.data import get_worker_info

        if get_worker_info() is None:
            return self._compute(task)
        try:
            return self._compute(task)
        except Exception as error:
            return Failure.of(error)

    def __reduce__(self) -> tuple[Any, ...]:
        # Arguments are unpickled in order: components are registered before the first of
        # them is looked for.
        imports = tuple(getattr(self._compute, "imports", ()))
        return _restore, (ComponentImports(imports), self._compute)


class ComponentImports:
    """Loads components wherever it is unpickled."""

    def __init__(self, names: tuple[str, ...]) -> None:
        self._names = names

    def __reduce__(self) -> tuple[Any, ...]:
        return _load_components, (self._names,)


def _load_components(names: tuple[str, ...]) -> None:
    from pipeline.config.discovery import load_all

    os.environ.setdefault("NO_ALBUMENTATIONS_UPDATE", "1")
    load_all(names)


def _restore(_: None, compute: Any) -> WorkerDataset:
    return WorkerDataset(compute)


def start_worker(worker_id: int) -> None:
    """Set a new worker process up."""
    leave_signals_to_main()
    # A spawned process is torn down in full, and now and then a native thread that is still
    # there aborts it, which the main process takes for the death of a worker at work.
    atexit.register(os._exit, 0)
    _end_with_main_process()
    use_one_thread()


def _end_with_main_process() -> None:
    """End this process when the main one is gone, however early that is.

    Torch's worker looks for another parent than the one it began with: a main process that was
    killed before the worker came to look left it waiting for ever.
    """
    main_process = multiprocessing.parent_process()
    if main_process is None:
        return

    def wait() -> None:
        multiprocessing.connection.wait([main_process.sentinel])
        os._exit(1)

    threading.Thread(target=wait, name="end with main process", daemon=True).start()


def use_one_thread() -> None:
    """Keep libraries from starting threads of their own in this process."""
    import torch

    torch.set_num_threads(1)
    quiet_opencv()
    keep_freed_memory()


def quiet_opencv() -> None:
    """Let OpenCV compute in the thread that calls it; it gives the same pixels."""
    try:
        import cv2
    except ImportError:
        return
    cv2.setNumThreads(0)


def identity(item: Any) -> Any:
    """The item as it is."""
    return item
