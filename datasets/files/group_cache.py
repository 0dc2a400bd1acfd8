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
        self._loaded_bytes = 0

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
            else:
                self._evict(group.result()[1])
        return group.result()[0]

    def _evict(self, added_bytes: int) -> None:
        evicted = []
        with self._lock:
            self._loaded_bytes += added_bytes
            last = next(key for key in reversed(self._groups) if self._groups[key].done())
            for key, group in self._groups.items():
                if self._loaded_bytes <= self.limit_bytes or key == last:
                    break
                if group.done():
                    self._loaded_bytes -= group.result()[1]
                    evicted.append(key)
            for key in evicted:
                del self._groups[key]
