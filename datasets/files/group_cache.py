"""Cache groups of records that can only be read as a whole, and evict the least recently used."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable
from concurrent.futures import Future
from typing import Any


class GroupCache:
    """An LRU cache of groups with a byte limit; threads that need one group load it once.

    The last used group stays at any size, so that sequential reading loads each group once.
    """

    def __init__(self, limit_bytes: int) -> None:
        self.limit_bytes = limit_bytes
        self._lock = threading.Lock()
        self._groups: OrderedDict[Hashable, Future[tuple[Any, int]]] = OrderedDict()

    def get(self, key: Hashable, load: Callable[[], tuple[Any, int]]) -> Any:
        """Return a group; `load` returns it and its size in bytes if it is not cached."""
        with self._lock:
            if is_mine := key not in self._groups:
                self._groups[key] = Future()
            group = self._groups[key]
            self._groups.move_to_end(key)
        if is_mine:
            try:
                group.set_result(load())
            except BaseException as error:
                with self._lock:
                    del self._groups[key]
                group.set_exception(error)
            self._evict()
        return group.result()[0]

    def _evict(self) -> None:
        with self._lock:
            loaded = [
                (key, group.result()[1]) for key, group in self._groups.items() if group.done()
            ]
            total = sum(size_bytes for _, size_bytes in loaded)
            for key, size_bytes in loaded[:-1]:
                if total > self.limit_bytes:
                    total -= size_bytes
                    del self._groups[key]
