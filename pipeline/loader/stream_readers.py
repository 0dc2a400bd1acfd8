"""Readers of a stream, in this process or in child processes that are restarted when they die."""

from __future__ import annotations

import logging
import pickle
import time
import weakref
from collections import deque
from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from penstock.core.processes import ChildProcess, interrupts_held, pickled, start_patience
from penstock.datasets.files.reading_thread import read_ahead, still_wanted
from penstock.datasets.streams.runs import SHORT_S, Run
from penstock.pipeline.loader.placement import Placement, placement_of
from penstock.pipeline.loader.worker import Payload, use_one_thread
from penstock.pipeline.loader.worker_errors import (
    Failure,
    LoaderTimeoutError,
    WorkerError,
    describe_death,
)

if TYPE_CHECKING:
    from multiprocessing.connection import Connection

    from penstock.core.contracts import StreamDataset
    from penstock.pipeline.loader.settings import LoaderSettings

_log = logging.getLogger(__name__)

_AT_ONCE = 8
"""Items sent in one message if they come fast."""
_TICK_S = 0.2
_END = object()
_TRIES = 3
"""Processes that may die at the same item."""


class StreamReaders:
    """Open readers of a stream, here or in processes that are reused in the next epoch.

    A user's code runs in child processes, one per worker and at most one per reader; each process
    serves its readers in turn. Framework readers run in this process.
    """

    def __init__(self, settings: LoaderSettings, imports: tuple[str, ...]) -> None:
        self._settings = settings
        self._imports = imports
        self._idle: list[ChildProcess] = []
        weakref.finalize(self, _end_all, self._idle)

    def __call__(
        self, dataset: StreamDataset, epoch: int, starts: Mapping[int, int]
    ) -> dict[int, Iterator[Any]]:
        """Open readers at `starts`, item numbers by reader; close the result to end them."""
        if not (dataset.foreign_reader and self._settings.workers):
            return {n: _items(dataset, epoch, n, start) for n, start in starts.items()}
        recipe = pickled(
            (_read, (Payload(dataset, self._imports), placement_of(self._settings))),
            what="loader: the data set",
            remedy="use loader.num_workers=0",
        )
        count = min(self._settings.workers, len(starts))
        opened: dict[int, Iterator[Any]] = {}
        self._idle[:] = [child for child in self._idle if child.is_own]
        for first in range(count):
            mine = {number: starts[number] for number in list(starts)[first::count]}
            opened |= _ReaderProcess(self._settings, recipe, self._idle, epoch, mine).items
        return opened

    def close(self) -> None:
        """End the idle processes."""
        _end_all(self._idle)


def _end_all(idle: list[ChildProcess]) -> None:
    while idle:
        idle.pop().end()


def _items(dataset: StreamDataset, epoch: int, number: int, start: int) -> Iterator[Any]:
    if dataset.readers == 1:
        return dataset.open(epoch, start)
    opened: Iterator[Any] = dataset.open(epoch, start, reader=number)  # type: ignore[call-arg]
    return opened


class _ReaderProcess:
    """Some readers of a stream in one process, which is restarted if it dies.

    The process reads the readers in turn, ahead of the consumer. `places` has the next item of each
    reader and is updated in place. The process joins the `idle` ones at the end.
    """

    def __init__(
        self,
        settings: LoaderSettings,
        recipe: bytes,
        idle: list[ChildProcess],
        epoch: int,
        places: dict[int, int],
    ) -> None:
        self._settings = settings
        self._recipe = recipe
        self._idle = idle
        self._epoch = epoch
        self._places = places
        self.items = {number: _Items(self, number) for number in places}
        self._arriving = read_ahead(self._received)

    def bring(self, waiting: _Items) -> bool:
        """Wait for an item of this reader; return False at its end."""
        while not (waiting.ready or waiting.ended):
            number, item = next(self._arriving)
            its = self.items[number]
            if item is _END:
                its.ended = True
            elif not its.closed:
                its.ready.append(item)
        return bool(waiting.ready)

    def close(self) -> None:
        if all(items.closed for items in self.items.values()):
            self._arriving.close()  # type: ignore[attr-defined]

    def _received(self) -> Iterator[tuple[int, Any]]:
        """Yield reader numbers and items as they arrive; runs in a thread."""
        failed = dict.fromkeys(self._places, 0)
        while self._places:
            child = self._idle.pop() if self._idle else self._started()
            is_done = False
            try:
                child.connection.send((self._epoch, self._places))
                for number, item in self._messages(child):
                    failed[number] = 0
                    if item is _END:
                        del self._places[number]
                    else:
                        self._places[number] += 1
                    yield number, item
                is_done = self._settings.persistent_workers
            except (EOFError, ConnectionError):
                child.end()
                how = describe_death(child.pid, child.exit_code)
                for number in self._places:
                    failed[number] += 1
                if max(failed.values()) >= _TRIES:
                    raise WorkerError(f"{how}; {_TRIES} ended at the same item") from None
                _log.warning("%s; another process resumes at the same item", how)
            finally:
                self._idle.append(child) if is_done else child.end()

    def _messages(self, child: ChildProcess) -> Iterator[tuple[int, Any]]:
        """Yield the messages of a process until its last reader ends."""
        limit_s = start_patience(self._settings.timeout_s)
        # Skipping items that were read before takes as long as reading them.
        passing = {number for number, place in self._places.items() if place}
        while self._places:
            deadline = time.monotonic() + (float("inf") if passing else limit_s)
            while not child.connection.poll(_TICK_S):
                still_wanted()
                if time.monotonic() > deadline:
                    raise LoaderTimeoutError(
                        f"loader: a reader of the stream gave no item within {limit_s:g} s; raise "
                        f"loader.timeout_s if reading is that slow"
                    )
            number, items = pickle.loads(child.connection.recv_bytes())
            if isinstance(items, Failure):
                raise items.exception()
            limit_s = self._settings.timeout_s
            passing.discard(number)
            yield from ((number, item) for item in items or (_END,))

    def _started(self) -> ChildProcess:
        with interrupts_held():
            child = ChildProcess()
        child.begin(self._recipe)
        return child


class _Items:
    """The items of one reader of a process; closing all of them ends the process."""

    def __init__(self, process: _ReaderProcess, number: int) -> None:
        self._process = process
        self.ready: deque[Any] = deque()
        self.ended = self.closed = False

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        if not self.ready and not self._process.bring(self):
            raise StopIteration
        return self.ready.popleft()

    def close(self) -> None:
        self.closed = True
        self.ready.clear()
        self._process.close()


def _read(connection: Connection, payload: Payload, placement: Placement) -> None:
    """Read one epoch after another in a child process, until the parent ends."""
    placement.enter_process()
    use_one_thread()
    with suppress(OSError, EOFError):
        while True:
            for message in _messages(payload.value, *connection.recv()):
                connection.send_bytes(message)


def _messages(dataset: StreamDataset, epoch: int, places: dict[int, int]) -> Iterator[bytes]:
    """Read each reader in turn; yield its number and items, none at its end, or an exception."""
    try:
        streams = {n: _items(dataset, epoch, n, start) for n, start in places.items()}
        while streams:
            most, within_s = _AT_ONCE, SHORT_S
            for number in list(streams):
                # As many of each reader as of the first, so that no items wait for another reader.
                run = Run(streams[number], most, within_s=within_s)
                most, within_s = max(len(run), 1), float("inf")
                items: list[Any] = []
                try:
                    items += run
                finally:
                    if items:
                        yield _pickled(number, items)
                if run.is_last:
                    del streams[number]
                    yield _pickled(number, [])
    except Exception as error:
        yield _pickled(-1, Failure.of(error))


def _pickled(number: int, content: Any) -> bytes:
    return pickle.dumps((number, content), pickle.HIGHEST_PROTOCOL)
