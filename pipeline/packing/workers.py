"""Tasks spread over worker processes; one that is killed is replaced, its task done again."""

from __future__ import annotations

import fcntl
import os
import pickle
import signal
import threading
import time
import traceback
from collections import Counter, deque
from collections.abc import Callable, Generator, Sequence
from multiprocessing import connection
from pathlib import Path
from typing import Any, Protocol

from pipeline.blame import is_explained
from pipeline.loader.starting import interrupts_held, process_context, why_no_processes
from pipeline.loader.watch import ending_of

_ATTEMPTS = 3
_REPORT_EVERY_S = 0.2
_LOOK_FOR_PARENT_S = 0.25

Tell = Callable[[int, int], None]
"""Takes how many records and bytes have been done since the last call."""


class Work(Protocol):
    """What workers do; it pickles."""

    def __call__(self, task: Any, tell: Tell) -> Any:
        """Do one task, in any process."""

    def name(self, task: Any) -> str:
        """What messages call a task."""


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
    pool = _Pool(work, lock, imports)
    try:
        yield from pool.run(tasks, min(num_workers, len(tasks)), tell)
    finally:
        pool.end()


class _Pool:
    """Processes, and what each of them does."""

    def __init__(self, work: Work, lock: Path | None, imports: Sequence[str]) -> None:
        self._name = work.name
        self._recipe = pickle.dumps(work)
        self._lock = None if lock is None else str(lock)
        self._imports = list(imports)
        self._processes: dict[Any, Any] = {}  # by the connection to each
        self._doing: dict[Any, Any] = {}
        self._told: dict[Any, tuple[int, int]] = {}  # of what each is doing

    def run(
        self, tasks: Sequence[Any], count: int, tell: Tell
    ) -> Generator[tuple[Any, Any], None, None]:
        waiting = deque(tasks)
        attempts: Counter[int] = Counter()
        for _ in range(count):
            self._start(waiting)
        while self._doing:
            ready: list[Any] = connection.wait(list(self._processes))
            for ours in ready:
                try:
                    kind, *said = ours.recv()
                except (EOFError, OSError):
                    task = self._doing.pop(ours)
                    attempts[id(task)] += 1
                    records, size_bytes = self._told.pop(ours)
                    tell(-records, -size_bytes)
                    self._bury(ours, task, attempts[id(task)])
                    waiting.appendleft(task)
                    self._start(waiting)
                    continue
                if kind == "told":
                    records, size_bytes = self._told[ours]
                    self._told[ours] = records + said[0], size_bytes + said[1]
                    tell(*said)
                    continue
                task = self._doing.pop(ours)
                if kind != "done":
                    raise _error(kind, said[0], said[1])
                self._give(ours, waiting)
                yield task, said[0]

    def end(self) -> None:
        """End all processes at once: what they had begun is done again another time."""
        for ours, process in self._processes.items():
            process.kill()
            ours.close()
        for process in self._processes.values():
            process.join()
        self._processes.clear()

    def _start(self, waiting: deque[Any]) -> None:
        context = process_context("spawn")
        ours, theirs = context.Pipe()
        process = context.Process(
            target=_serve, args=(theirs, self._lock, self._imports, os.getpid()), daemon=True
        )
        with interrupts_held():
            process.start()
            self._processes[ours] = process
        theirs.close()
        try:
            ours.send_bytes(self._recipe)
        except OSError:
            pass  # it has died; that is seen where it should answer
        self._give(ours, waiting)

    def _give(self, ours: Any, waiting: deque[Any]) -> None:
        if not waiting:
            process = self._processes.pop(ours)
            process.kill()  # it waits, and has nothing to lose
            process.join()
            ours.close()
            return
        self._doing[ours], self._told[ours] = waiting.popleft(), (0, 0)
        try:
            ours.send(self._doing[ours])
        except OSError:
            pass

    def _bury(self, ours: Any, task: Any, attempts: int) -> None:
        process = self._processes.pop(ours)
        ours.close()
        process.join()
        if attempts < _ATTEMPTS:
            return
        code = process.exitcode or 0
        remedy = (
            "if memory is short, give fewer pack.num_workers, or look at these records with "
            "pack.num_workers=0"
        )
        if code > 0 and (reason := why_no_processes("spawn")):
            remedy = f"{reason}: write it there, or give pack.num_workers=0"
        raise ValueError(
            f"pack: {self._name(task)} ended its worker process {attempts} times "
            f"({ending_of(code)}); {remedy}"
        )


def _error(kind: str, text: str, number: int) -> Exception:
    if kind == "value":
        return ValueError(text)
    if kind == "system":
        return OSError(number, text)
    return RuntimeError(f"pack: a worker failed\n{text}")


def _serve(theirs: Any, lock: str | None, imports: list[str], parent: int) -> None:
    """A worker process: do tasks until the other end is closed."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the parent, who ends us
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    threading.Thread(target=_end_with, args=(parent,), daemon=True).start()
    if lock is not None:
        descriptor = os.open(lock, os.O_RDONLY)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_SH)
        except OSError:  # a file system without locks
            pass
    try:
        _work(theirs, imports)
    except (EOFError, BrokenPipeError):  # the parent has gone
        return
    except OSError as error:
        theirs.send(("system", error.strerror or str(error), error.errno or 0))
    except Exception as error:
        if isinstance(error, ValueError) and is_explained(error):
            theirs.send(("value", str(error), 0))
        else:  # the traceback is all that can be said
            theirs.send(("failure", traceback.format_exc(), 0))


def _work(theirs: Any, imports: list[str]) -> None:
    from pipeline.config.discovery import load_imports

    recipe = theirs.recv_bytes()
    load_imports(imports)
    work = pickle.loads(recipe)
    while True:
        task = theirs.recv()
        told = _Told(theirs)
        result = work(task, told)
        told.flush()
        theirs.send(("done", result))


class _Told:
    """Tells the parent how it goes, now and then."""

    def __init__(self, theirs: Any) -> None:
        self._theirs = theirs
        self._records = self._bytes = 0
        self._next_s = 0.0

    def __call__(self, records: int, size_bytes: int) -> None:
        self._records += records
        self._bytes += size_bytes
        if time.monotonic() >= self._next_s:
            self._next_s = time.monotonic() + _REPORT_EVERY_S
            self.flush()

    def flush(self) -> None:
        """Tell what has not been told yet."""
        self._theirs.send(("told", self._records, self._bytes))
        self._records = self._bytes = 0


def _end_with(parent: int) -> None:
    """End this process when its parent is gone, whatever it is doing."""
    while os.getppid() == parent:
        time.sleep(_LOOK_FOR_PARENT_S)
    os._exit(1)
