"""Prefetch a stream in a thread."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from dataclasses import replace
from typing import Any

from penstock.core.stage_times import Traffic, traffic

_CHUNK_ITEMS = 16
_CHUNKS = 4
_TICK_S = 0.2
_JOIN_S = 2.0


class NoLongerWanted(Exception):
    """The consumer closed the reading thread."""


class ReadingThread(threading.Thread):
    """Reads items of an iterator into a queue until they end or the consumer closes it.

    A chunk has items, the requests for them, and at the end a tuple of the error or None.
    """

    def __init__(self, read: Callable[[], Any]) -> None:
        super().__init__(name="penstock-stream", daemon=True)
        self.ready: queue.Queue[tuple[list[Any], Traffic, tuple[Any, ...]]] = queue.Queue(_CHUNKS)
        self.is_closed = threading.Event()
        self._read = read
        self._chunk: list[Any] = []

    def run(self) -> None:
        error = None
        with suppress(NoLongerWanted):
            try:
                with closing(self._read()) as items:
                    for item in items:
                        self._chunk.append(item)
                        # A waiting consumer gets an item at once.
                        if len(self._chunk) >= _CHUNK_ITEMS or self.ready.empty():
                            self._hand_over()
            except NoLongerWanted:
                raise
            except BaseException as raised:
                error = raised
            self._hand_over(error)

    def wait(self) -> None:
        """Hand over items if the consumer waits; raise `NoLongerWanted` if it closed the thread."""
        if self.is_closed.is_set():
            raise NoLongerWanted
        if self._chunk and self.ready.empty():
            self._hand_over()

    def _hand_over(self, *ending: BaseException | None) -> None:
        chunk, self._chunk = self._chunk, []
        asked = replace(traffic())
        traffic().add(asked, -1)
        while not self.is_closed.is_set():
            with suppress(queue.Full):
                return self.ready.put((chunk, asked, ending), timeout=_TICK_S)
        raise NoLongerWanted


def read_ahead(read: Callable[[], Iterator[Any]]) -> Iterator[Any]:
    """Prefetch about 64 items of the generator function `read` in a thread, which starts at once.

    It ends when this iterator is closed. The consumer's thread counts the requests to servers.
    """
    items = _items_of(ReadingThread(read))
    next(items)  # start the thread, which `close` ends
    return items


def _items_of(thread: ReadingThread) -> Iterator[Any]:
    thread.start()
    ending: tuple[Any, ...] = ()
    try:
        yield None
        while not ending:
            items, asked, ending = thread.ready.get()
            traffic().add(asked)
            yield from items
        if ending[0] is not None:
            raise ending[0]
    finally:
        thread.is_closed.set()
        thread.join(_JOIN_S)  # it may be blocked in a read


def still_wanted() -> None:
    """Raise `NoLongerWanted` in a closed reading thread; for wait loops."""
    thread = threading.current_thread()
    if isinstance(thread, ReadingThread):
        thread.wait()
