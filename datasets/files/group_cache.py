"""Cache groups of records that can only be read as a whole, and evict the least recently used."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Any


class GroupCache:
    """An LRU cache of groups with a byte limit, shared by threads.

    Threads that need the same group wait for one of them to load it. The last used group stays at
    any size, so that sequential reading loads each group once.
    """

    def __init__(self, limit_bytes: int) -> None:
        self.limit_bytes = limit_bytes
        self._lock = threading.Lock()
        self._groups: OrderedDict[Hashable, _Group] = OrderedDict()
        self._size_bytes = 0

    def get(self, key: Hashable, load: Callable[[], tuple[Any, int]]) -> Any:
        """Return a group, and load it if it is not cached."""
        with self._lock:
            group = self._groups.get(key)
            if group is None:
                group = self._groups[key] = _Group()
            self._groups.move_to_end(key)
        with group.lock:
            if not group.is_loaded:
                try:
                    group.value, group.size_bytes = load()
                except BaseException:
                    with self._lock:
                        if self._groups.get(key) is group:
                            del self._groups[key]
                    raise
                group.is_loaded = True
                self._admit(key, group)
        return group.value

    def _admit(self, key: Hashable, group: _Group) -> None:
        with self._lock:
            if self._groups.get(key) is not group:
                return
            self._size_bytes += group.size_bytes
            for other in list(self._groups):
                if self._size_bytes <= self.limit_bytes:
                    break
                # A group counts only after it is loaded.
                if other != key and self._groups[other].is_loaded:
                    self._size_bytes -= self._groups.pop(other).size_bytes


class _Group:
    """A group that one thread loads while others wait."""

    __slots__ = ("is_loaded", "lock", "size_bytes", "value")

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.is_loaded = False
        self.value: Any = None
        self.size_bytes = 0
