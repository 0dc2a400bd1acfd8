"""Tasks spread over worker processes; one that is killed is replaced, its task done again.

Each worker of this machine is a process that does one task at a time, so that the end of a process
is the end of its task.
"""

from __future__ import annotations

import fcntl
import os
import pickle
import subprocess
import threading
import traceback
from collections import Counter
from collections.abc import Callable, Generator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from contextlib import nullcontext, suppress
from dataclasses import dataclass
from functools import cache
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Protocol

from penstock.core.machine_cache import files_sent
from penstock.core.processes import ChildProcess, ending_of, interrupts_held
from penstock.core.user_errors import in_one_line

_ATTEMPTS = 3
_REAP_S = 10.0


class ProcessEndedError(RuntimeError):
    """A process ended before it answered."""


class Worker(Protocol):
    """Does one task at a time, in a process of its own."""

    def submit(self, task: Any) -> Future[tuple[Any, Exception | None]]:
        """Let it do a task: its result, or what went wrong."""


class Launcher(Protocol):
    """Starts workers of one kind.

    Args:
        needs: What each of them is given.
    """

    def __init__(self, needs: Needs) -> None: ...

    def start(self) -> Worker:
        """Start one."""

    def ending(self, error: BaseException) -> str | None:
        """How a worker ended, if this is what an error of its future says.

        Raises:
            ValueError: It did not begin, and another would not.
        """

    def end(self) -> None:
        """End all of them at once, whatever they are doing."""


@dataclass(frozen=True, slots=True)
class Needs:
    """What a worker is given, wherever it runs.

    Attributes:
        work: The pickled work.
        lock: A file on which it holds a shared lock while it writes.
        imports: Modules and files of the user's, loaded before the work is unpickled.
    """

    work: bytes
    lock: Path | None
    imports: tuple[str, ...]

    def locked(self) -> int | None:
        """Lock the file, until the descriptor that this gives is closed or the process ends.

        Raises:
            FileNotFoundError: It is not there.
        """
        if self.lock is None:
            return None
        descriptor = os.open(self.lock, os.O_RDONLY)
        with suppress(OSError):  # a file system without locks
            fcntl.flock(descriptor, fcntl.LOCK_SH)
        return descriptor

    def loaded(self) -> Work:
        """The work."""
        from penstock.pipeline.config.components import load_imports

        load_imports(list(self.imports))
        loaded: Work = pickle.loads(self.work)
        return loaded


class Work(Protocol):
    """The work of the workers; it pickles."""

    def __call__(self, task: Any) -> Any:
        """Do one task, in any process."""

    def name(self, task: Any) -> str:
        """Name a task in messages."""


def do_tasks(
    work: Work,
    tasks: Sequence[Any],
    *,
    num_workers: int,
    lock: Path | None,
    imports: Sequence[str],
    launcher: str = "local",
) -> Generator[tuple[Any, Any], None, None]:
    """Do tasks, in this process or in several others.

    Args:
        work: What is done with each.
        tasks: What to do, begun in this order.
        num_workers: Processes; 0: this one.
        lock: A file on which every process holds a shared lock while it lives.
        imports: Modules and files of the user's, loaded before `work` is unpickled.
        launcher: Where the processes run: ``local`` or ``ray``.

    Yields:
        Task and result, as they get done.

    Raises:
        ValueError: A task failed, or its process was killed too often.
        OSError: A task failed so.
        RuntimeError: A task failed in a way that was not foreseen; with its traceback.
    """
    if num_workers == 0:
        for task in tasks:
            yield task, work(task)
        return
    import cloudpickle

    # By value where it is of the program itself, which the workers do not run again.
    with files_sent() if launcher == "ray" else nullcontext():
        pickled = cloudpickle.dumps(work)
    needs = Needs(pickled, lock, tuple(imports))
    workers = _launcher_named(launcher)(needs)
    doing: dict[Future[Any], tuple[Worker, int]] = {}
    waiting, killed = iter(range(len(tasks))), Counter[int]()

    def start(number: int | None, worker: Worker | None = None) -> None:
        if number is None:
            return
        with interrupts_held():
            worker = worker or workers.start()
            doing[worker.submit(tasks[number])] = worker, number

    try:
        for _ in range(num_workers):
            start(next(waiting, None))
        while doing:
            for future in wait(doing, return_when=FIRST_COMPLETED).done:
                worker, number = doing.pop(future)
                if (error := future.exception()) and (how := workers.ending(error)):
                    killed[number] += 1
                    if killed[number] == _ATTEMPTS:
                        raise _killed(work.name(tasks[number]), how)
                    start(number)
                    continue
                result, failure = future.result()
                if failure is not None:
                    raise failure
                start(next(waiting, None), worker)
                yield tasks[number], result
    finally:  # at once: what they had begun is done again another time
        workers.end()


def _launcher_named(name: str) -> type[Launcher]:
    if name == "ray":
        from penstock.pipeline.packing.ray_workers import RayLauncher

        return RayLauncher
    return LocalLauncher


def _killed(name: str, how: str) -> ValueError:
    return ValueError(
        f"pack: {name} ended its worker process {_ATTEMPTS} times ({how}); if memory is short, "
        f"give fewer pack.num_workers, or look at these records with pack.num_workers=0"
    )


class LocalLauncher:
    """Processes of this machine, which end with this one.

    Args:
        needs: What each of them is given.
    """

    def __init__(self, needs: Needs) -> None:
        self._recipe = pickle.dumps((_serve, (needs,)))
        self._workers: list[_LocalWorker] = []

    def start(self) -> Worker:
        """Start a process."""
        self._workers.append(_LocalWorker(self._recipe))
        return self._workers[-1]

    def ending(self, error: BaseException) -> str | None:
        """How the process ended."""
        return str(error) if isinstance(error, ProcessEndedError) else None

    def end(self) -> None:
        """Kill the processes."""
        for worker in self._workers:
            worker.end()


class _LocalWorker:
    """A process, and a thread here that waits for its answers."""

    def __init__(self, recipe: bytes) -> None:
        self._child = ChildProcess()
        self._child.begin(recipe)
        self._future: Future[Any]

    def submit(self, task: Any) -> Future[tuple[Any, Exception | None]]:
        self._future = Future()
        self._child.connection.send(task)
        threading.Thread(target=self._answer, args=(self._future,), daemon=True).start()
        return self._future

    def _answer(self, future: Future[Any]) -> None:
        try:
            future.set_result(self._child.connection.recv())
        except (EOFError, OSError):
            with suppress(subprocess.TimeoutExpired):
                self._child.process.wait(_REAP_S)
            future.set_exception(ProcessEndedError(ending_of(self._child.process.poll() or 0)))

    def end(self) -> None:
        self._child.process.kill()
        self._child.process.wait()
        self._child.end()


def _serve(connection: Connection, needs: Needs) -> None:
    """Do tasks in a worker process until the parent ends."""
    needs.locked()
    # Not before a task, so that a failure here is reported as one of the task.
    work = cache(needs.loaded)
    with suppress(EOFError, OSError):
        while True:
            connection.send(done(work, connection.recv()))


def done(work: Callable[[], Work], task: Any) -> tuple[Any, Exception | None]:
    """Do one task: its result, or what went wrong."""
    try:
        return work()(task), None
    except OSError as error:
        return None, OSError(error.errno or 0, error.strerror or str(error), error.filename)
    except Exception as error:
        if (line := in_one_line(error)) is not None:
            return None, ValueError(line)
        return None, RuntimeError(f"pack: a worker failed\n{traceback.format_exc()}")
