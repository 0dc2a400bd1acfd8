"""Prefetch a stream in a thread."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

from penstock.core.stage_times import Traffic, traffic

_CHUNK_ITEMS = 16
_CHUNKS = 4
_TICK_S = 0.2
_JOIN_S = 2.0


class NoLongerWanted(Exception):
    """The consumer closed the reading thread."""


class _End:
    """The last item of a thread, with the error that ended it."""

    def __init__(self, error: BaseException | None = None) -> None:
        self.error = error


class ReadingThread(threading.Thread):
    """Reads items of an iterator into a queue until they end or the consumer closes it."""

    def __init__(self, read: Callable[[], Iterator[Any]]) -> None:
        super().__init__(name="penstock-stream", daemon=True)
        self.ready: queue.Queue[tuple[list[Any], Traffic] | _End] = queue.Queue(_CHUNKS)
        self._begin = read
        self._chunk: list[Any] = []
        self._stop_asked = threading.Event()

    def run(self) -> None:
        """Fill the queue; an error follows the items before it."""
        try:
            items = self._begin()
            try:
                for item in items:
                    self._chunk.append(item)
                    # A waiting consumer gets an item at once.
                    if len(self._chunk) >= _CHUNK_ITEMS or self.ready.empty():
                        self._hand_over()
            finally:
                items.close()  # type: ignore[attr-defined]
            self._hand_over()
            self._put(_End())
        except NoLongerWanted:
            return
        except BaseException as error:
            with suppress(NoLongerWanted):
                self._hand_over()
                self._put(_End(error))

    def end(self) -> None:
        """Ask the thread to end and wait briefly; it may be blocked in a read."""
        self._stop_asked.set()
        self.join(_JOIN_S)

    def check(self) -> None:
        """Raise `NoLongerWanted` if the consumer closed the thread."""
        if self._stop_asked.is_set():
            raise NoLongerWanted

    def wait(self) -> None:
        """Hand over items if the consumer waits, and `check`."""
        self.check()
        if self._chunk and self.ready.empty():
            self._hand_over()

    def _hand_over(self) -> None:
        chunk, self._chunk = self._chunk, []
        mine = traffic()
        asked = Traffic(mine.requests, mine.size_bytes)
        mine.requests = mine.size_bytes = 0
        self._put((chunk, asked))

    def _put(self, item: tuple[list[Any], Traffic] | _End) -> None:
        while True:
            self.check()
            try:
                return self.ready.put(item, timeout=_TICK_S)
            except queue.Full:
                continue


def read_ahead(read: Callable[[], Iterator[Any]]) -> Iterator[Any]:
    """Prefetch about 64 items of the generator function `read` in a thread.

    The thread starts immediately, so that several streams read in parallel. It ends when this
    iterator is closed. The consumer's thread counts the requests to servers.
    """
    items = _items_of(ReadingThread(read))
    next(items)  # start the thread, which `close` ends
    return items


def _items_of(thread: ReadingThread) -> Iterator[Any]:
    thread.start()
    try:
        yield None
        while not isinstance(chunk := thread.ready.get(), _End):
            items, asked = chunk
            traffic().add(asked)
            yield from items
        if chunk.error is not None:
            raise chunk.error
    finally:
        thread.end()


def still_wanted() -> None:
    """Raise `NoLongerWanted` in a closed reading thread; for wait loops."""
    thread = threading.current_thread()
    if isinstance(thread, ReadingThread):
        thread.wait()
