"""Worker processes that a SIGTERM to the whole job leaves at work until the main process ends."""

from __future__ import annotations

import copy
import signal
import weakref
from multiprocessing import util
from multiprocessing.context import ForkProcess, ForkServerProcess, SpawnProcess
from multiprocessing.process import BaseProcess, current_process
from types import MethodType
from typing import Any

from pipeline.loader.starting import process_context, sigterm_blocked


def worker_context(name: str) -> Any:
    """The multiprocessing context of a start method, its processes deaf to SIGTERM at first.

    They are to call `leave_signals_to_main`, and end with the main process.
    """
    context = copy.copy(process_context(name))
    context.Process = _PROCESSES[name]
    return context


class _Worker(BaseProcess):
    """A process that is started with SIGTERM blocked, and killed where others are terminated.

    Multiprocessing, when the main process ends, and torch terminate what still runs and wait
    for it: for a worker that takes no heed of SIGTERM they would wait for ever.
    """

    def start(self) -> None:
        with sigterm_blocked():
            super().start()
        running: Any = vars(self)["_popen"]
        # Through a proxy: what refers to itself would keep its descriptors until it is collected.
        running.terminate = MethodType(type(running).kill, weakref.proxy(running))


class _ForkWorker(_Worker, ForkProcess):
    pass


class _ForkServerWorker(_Worker, ForkServerProcess):
    pass


class _SpawnWorker(_Worker, SpawnProcess):
    pass


_PROCESSES = {"fork": _ForkWorker, "forkserver": _ForkServerWorker, "spawn": _SpawnWorker}


def leave_signals_to_main() -> None:
    """Take no heed of Ctrl-C and SIGTERM, which may go to every process of a job.

    The main process needs the batches of its last step, and ends its workers itself.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    # Neither ignored nor blocked: commands that a data set starts would inherit that.
    signal.signal(signal.SIGTERM, lambda number, frame: None)
    signal.siginterrupt(signal.SIGTERM, False)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})


def _unblock_for_others(_: object) -> None:
    """Let processes of other people's, forked from the same server, be terminated as usual."""
    if not isinstance(current_process(), _Worker):
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})


# Called in every process that multiprocessing forks, from the server too, which imports this.
util.register_after_fork(_unblock_for_others, _unblock_for_others)
