"""Tasks spread over worker processes; one that is killed is replaced, its task done again.

Each worker is a pool of loky's with one process, so that a process's end is that of its own task.
(Of loky 3.7 and pebble 5.2, loky was chosen: a process starts in 0.09 s and runs no `__main__`
again, its end is seen in 0.07 s. Pebble forgets a task whose process dies before it has said that
it began.)
"""

from __future__ import annotations

import fcntl
import os
import pickle
import re
import signal
import tempfile
import threading
import time
import traceback
from collections import Counter, deque
from collections.abc import Callable, Generator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from penstock.core.own_folder import own_folder
from penstock.core.processes import ending_of, interrupts_held
from penstock.core.user_errors import in_one_line

_ATTEMPTS = 3
_REPORT_EVERY_S = 0.2
_LOOK_FOR_PARENT_S = 0.25

Tell = Callable[[int, int], None]
"""Takes how many records and bytes have been done since the last call."""


class Work(Protocol):
    """The work of the workers; it pickles."""

    def __call__(self, task: Any, tell: Tell) -> Any:
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
    tell: Tell,
) -> Generator[tuple[Any, Any], None, None]:
    """Do tasks, in this process or in several others.

    Args:
        work: What is done with each.
        tasks: What to do, begun in this order.
        num_workers: Processes; 0: this one.
        lock: A file on which every process holds a shared lock while it lives.
        imports: Modules and files of the user's, loaded before `work` is unpickled.
        tell: Is told how it goes.

    Yields:
        Task and result, as they get done.

    Raises:
        ValueError: A task failed, or its process was killed too often.
        OSError: A task failed so.
        RuntimeError: A task failed in a way that was not foreseen; with its traceback.
    """
    if num_workers == 0:
        for task in tasks:
            yield task, work(task, tell)
        return
    with tempfile.NamedTemporaryFile(dir=own_folder()) as file:
        shape = len(tasks), 2
        counts = np.memmap(file.name, np.int64, "w+", shape=shape)
        workers = _Workers(work, lock, imports, counts)
        told = np.zeros(2, np.int64)
        waiting, attempts = deque(range(len(tasks))), Counter[int]()
        try:
            for _ in range(min(num_workers, len(tasks))):
                workers.start(waiting.popleft(), tasks)
            while workers.doing:
                ready, _ = wait(workers.doing, _REPORT_EVERY_S, FIRST_COMPLETED)
                for future in ready:
                    pool, number = workers.doing.pop(future)
                    code = _exit_code(future)
                    if code is not None:
                        attempts[number] += 1
                        if attempts[number] == _ATTEMPTS:
                            raise _killed(work.name(tasks[number]), code)
                        workers.end(pool)
                        counts[number] = 0
                        workers.start(number, tasks)
                        continue
                    result, failure = future.result()
                    if failure is not None:
                        raise failure
                    if waiting:
                        workers.start(waiting.popleft(), tasks, pool)
                    else:
                        workers.end(pool)
                    yield tasks[number], result
                done = counts.sum(0)
                tell(*(done - told).tolist())
                told = done
        finally:
            workers.end()


class _Workers:
    """Pools of one process each, and the tasks that they do."""

    def __init__(
        self, work: Work, lock: Path | None, imports: Sequence[str], counts: np.memmap
    ) -> None:
        import cloudpickle

        # By value where it is of the program itself, which the workers do not run again.
        recipe = cloudpickle.dumps(work)
        self._begin = recipe, lock, list(imports), counts.filename, counts.shape, os.getpid()
        self._pools: list[Any] = []
        self.doing: dict[Future[Any], tuple[Any, int]] = {}

    def start(self, number: int, tasks: Sequence[Any], pool: Any = None) -> None:
        """Have a task done, by a pool that waits or by a new one."""
        from loky.process_executor import ProcessPoolExecutor

        if pool is None:
            pool = ProcessPoolExecutor(1, initializer=_begin, initargs=self._begin)
            self._pools.append(pool)
        with interrupts_held():
            self.doing[pool.submit(_do, number, tasks[number])] = pool, number

    def end(self, pool: Any = None) -> None:
        """End a pool, or all, at once: what they had begun is done again another time."""
        for one in [pool] if pool is not None else [*self._pools]:
            one.shutdown(wait=True, kill_workers=True)
            self._pools.remove(one)


def _exit_code(future: Future[Any]) -> int | None:
    """Read how the process of a task ended; None where it goes on."""
    from loky.process_executor import TerminatedWorkerError

    error = future.exception()
    if not isinstance(error, TerminatedWorkerError):
        return None
    code = re.search(r"\((-?\d+)\)", str(error))
    return int(code[1]) if code else 1


def _killed(name: str, code: int) -> ValueError:
    return ValueError(
        f"pack: {name} ended its worker process {_ATTEMPTS} times ({ending_of(code)}); if memory "
        f"is short, give fewer pack.num_workers, or look at these records with pack.num_workers=0"
    )


_work: Callable[[], Work]
_counts: np.memmap


def _begin(
    recipe: bytes, lock: Path | None, imports: list[str], name: str, shape: Any, parent: int
) -> None:
    """Prepare a worker process, which ends with its parent, whatever it is doing."""
    global _work, _counts
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the parent, who ends us
    threading.Thread(target=_end_with, args=(parent,), daemon=True).start()
    if lock is not None:
        descriptor = os.open(lock, os.O_RDONLY)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_SH)
        except OSError:  # a file system without locks
            pass
    _counts = np.memmap(name, np.int64, "r+", shape=shape)
    found: list[Work] = []

    def work() -> Work:
        if not found:  # not before: what goes wrong here is told as what goes wrong in a task
            from penstock.pipeline.config.discovery import load_imports

            load_imports(imports)
            found.append(pickle.loads(recipe))
        return found[0]

    _work = work


def _do(number: int, task: Any) -> tuple[Any, Exception | None]:
    """Do one task: its result, or what went wrong."""

    def tell(records: int, size_bytes: int) -> None:
        _counts[number] += records, size_bytes

    try:
        return _work()(task, tell), None
    except OSError as error:
        return None, OSError(error.errno or 0, error.strerror or str(error))
    except Exception as error:
        if (line := in_one_line(error, command="pack")) is not None:
            return None, ValueError(line)
        return None, RuntimeError(f"pack: a worker failed\n{traceback.format_exc()}")


def _end_with(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(_LOOK_FOR_PARENT_S)
    os._exit(1)
