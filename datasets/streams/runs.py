"""Take several items of a fast iterator at once."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

SHORT_S = 0.005


class Run:
    """The next items of an iterator: at least one, and more that arrive within `within_s`.

    An error is raised after the items before it. `is_last` means that the iterator has ended.
    """

    def __init__(self, items: Iterator[Any], most: int, *, within_s: float = SHORT_S) -> None:
        self.is_last = False
        self._taken: list[Any] = []
        self._error: Exception | None = None
        until = time.perf_counter() + within_s
        try:
            while not self._taken or (len(self._taken) < most and time.perf_counter() < until):
                self._taken.append(next(items))
        except StopIteration:
            self.is_last = True
        except Exception as error:
            self._error = error

    def __len__(self) -> int:
        return len(self._taken)

    def __iter__(self) -> Iterator[Any]:
        yield from self._taken
        if self._error is not None:
            raise self._error
