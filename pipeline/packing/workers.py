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
import threading
import time
import traceback
from collections import Counter
from collections.abc import Callable, Generator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from functools import cache
from pathlib import Path
from typing import Any, Protocol

from penstock.core.processes import ending_of, interrupts_held
from penstock.core.user_errors import in_one_line

_ATTEMPTS = 3
_LOOK_FOR_PARENT_S = 0.25


class Work(Protocol):
    """The work of the workers; it pickles."""

    def __call__(self, task: Any) -> Any:
        """Do one task, in any process."""

    def name(self, task: Any) -> str:
        """Name a task in messages."""


def do_tasks(
    work: Work, tasks: Sequence[Any], *, num_workers: int, lock: Path | None, imports: Sequence[str]
) -> Generator[tuple[Any, Any], None, None]:
    """Do tasks, in this process or in several others.

    Args:
        work: What is done with each.
        tasks: What to do, begun in this order.
        num_workers: Processes; 0: this one.
        lock: A file on which every process holds a shared lock while it lives.
        imports: Modules and files of the user's, loaded before `work` is unpickled.

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
    from loky.process_executor import ProcessPoolExecutor, TerminatedWorkerError

    # By value where it is of the program itself, which the workers do not run again.
    given = cloudpickle.dumps(work), lock, list(imports), os.getpid()
    pools: list[Any] = []
    doing: dict[Future[Any], tuple[Any, int]] = {}
    waiting, killed = iter(range(len(tasks))), Counter[int]()

    def start(number: int | None, pool: Any = None) -> None:
        if number is None:
            return
        if pool is None:
            pool = ProcessPoolExecutor(1, initializer=_begin, initargs=given)
            pools.append(pool)
        with interrupts_held():
            doing[pool.submit(_do, tasks[number])] = pool, number

    try:
        for _ in range(num_workers):
            start(next(waiting, None))
        while doing:
            for future in wait(doing, return_when=FIRST_COMPLETED).done:
                pool, number = doing.pop(future)
                if isinstance(error := future.exception(), TerminatedWorkerError):
                    killed[number] += 1
                    if killed[number] == _ATTEMPTS:
                        raise _killed(work.name(tasks[number]), error)
                    start(number)
                    continue
                result, failure = future.result()
                if failure is not None:
                    raise failure
                start(next(waiting, None), pool)
                yield tasks[number], result
    finally:  # at once: what they had begun is done again another time
        for pool in pools:
            pool.shutdown(wait=True, kill_workers=True)


def _killed(name: str, error: Exception) -> ValueError:
    code = re.search(r"\((-?\d+)\)", str(error))  # of the one process that there was
    return ValueError(
        f"pack: {name} ended its worker process {_ATTEMPTS} times "
        f"({ending_of(int(code[1]) if code else 1)}); if memory is short, give fewer "
        f"pack.num_workers, or look at these records with pack.num_workers=0"
    )


_work: Callable[[], Work]


def _begin(recipe: bytes, lock: Path | None, imports: list[str], parent: int) -> None:
    """Prepare a worker process, which ends with its parent, whatever it is doing."""
    global _work
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the parent, who ends us
    threading.Thread(target=_end_with, args=(parent,), daemon=True).start()
    if lock is not None:
        descriptor = os.open(lock, os.O_RDONLY)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_SH)
        except OSError:  # a file system without locks
            pass

    @cache  # not before a task: what goes wrong here is told as what goes wrong in one
    def work() -> Work:
        from penstock.pipeline.config.discovery import load_imports

        load_imports(imports)
        loaded: Work = pickle.loads(recipe)
        return loaded

    _work = work


def _do(task: Any) -> tuple[Any, Exception | None]:
    """Do one task: its result, or what went wrong."""
    try:
        return _work()(task), None
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
