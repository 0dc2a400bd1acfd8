"""Starts worker processes, and gives up where starting them is of no use."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from pipeline.loader.contract import BatchTask, Delivery
from pipeline.loader.ring.process import WorkerProcess
from pipeline.loader.starting import ensure_server, has_server_ended
from pipeline.loader.worker import WorkerError

if TYPE_CHECKING:
    from pipeline.loader.settings import LoaderSettings

_FAILED_STARTS = 3


class Recruiter:
    """Starts the processes of a crew.

    Of processes that end before they are ready, those that were started before the first of
    them ended count as one failed start: the end of their server, say, ends them all.

    Args:
        context: The multiprocessing context that says how they start.
        compute: A task to a delivery; sent to the processes.
        settings: Deadline and start method.
        threads: Number of threads of each process.
        read_ahead: Batches that wait in the processes, where their records are read.
    """

    def __init__(
        self,
        context: Any,
        compute: Callable[[BatchTask], Delivery],
        settings: LoaderSettings,
        *,
        threads: Sequence[int],
        read_ahead: int,
    ) -> None:
        self._context = context
        self._compute = compute
        self._settings = settings
        self._threads = threads
        self._read_ahead = -(-read_ahead // len(threads))
        self._failed_starts = 0
        self._generation = 0  # of the processes between two failed starts
        self._closing = False

    def close(self) -> None:
        """Try no start again."""
        self._closing = True

    def start(self, number: int, *, examines: bool = False) -> WorkerProcess:
        """Start a process, from another server if the one it is forked from ends meanwhile.

        Args:
            number: Its number among the processes.
            examines: Whether it computes one task at a time.

        Raises:
            WorkerError: The server ended each time.
            ValueError: The data set cannot be sent to processes.
        """
        while True:
            server = ensure_server(self._settings.multiprocessing_context)
            try:
                return self._start(number, examines)
            except (EOFError, ConnectionError) as error:
                if server is None or self._closing or not has_server_ended(server):
                    raise
                how = f"loader: process {server}, which forks the worker processes, ended"
                self._fail(self._generation, how, error)

    def _start(self, number: int, examines: bool) -> WorkerProcess:
        return WorkerProcess(
            self._context,
            self._compute,
            number=number,
            num_processes=len(self._threads),
            num_threads=1 if examines else self._threads[number],
            read_ahead=0 if examines else self._read_ahead,
            timeout_s=self._settings.timeout_s,
            generation=self._generation,
        )

    def is_ready(self) -> None:
        """A process has started."""
        self._failed_starts = 0

    def died(self, worker: WorkerProcess) -> None:
        """A process died.

        Raises:
            WorkerError: It was not ready yet, nor were others before it.
        """
        if not worker.is_ready:
            self._fail(worker.generation, worker.describe_end())

    def _fail(self, generation: int, how: str, cause: Exception | None = None) -> None:
        if generation < self._generation:
            return
        self._generation += 1
        self._failed_starts += 1
        if self._failed_starts >= _FAILED_STARTS:
            raise WorkerError(how) from cause
