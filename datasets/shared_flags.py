"""A flag for each of many things, seen by all processes of a loader."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from datasets.shared_area import SharedArea


class SharedFlags:
    """A bit for each of many things, none set at first, and never cleared.

    A process that gets it, by pickle or by fork, has the same bits; where its maker has ended, new
    ones. Of neighbours that are set at the same moment one may be lost, so a bit can only stand for
    what may be done again.

    Args:
        count: How many there are.
    """

    def __init__(self, count: int) -> None:
        self._attach(SharedArea(_size_bytes(count)), count)

    def _attach(self, area: SharedArea, count: int) -> None:
        self._area, self._count = area, count
        self._bytes = area.memory.data

    def __getitem__(self, number: int) -> bool:
        return bool(self._bytes[number >> 3] & 1 << (number & 7))

    def set(self, number: int) -> None:
        """Set one."""
        self._bytes[number >> 3] |= 1 << (number & 7)

    def __reduce__(self) -> tuple[Any, ...]:
        open_area, place = self._area.__reduce__()
        return _reopened, (open_area, place, self._count)


def _reopened(open_area: Callable[..., SharedArea], place: tuple[Any, ...], count: int) -> Any:
    try:
        area = open_area(*place)
    except RuntimeError:  # its maker has ended
        area = SharedArea(_size_bytes(count))
    flags = object.__new__(SharedFlags)
    flags._attach(area, count)
    return flags


def _size_bytes(count: int) -> int:
    return count // 8 + 1
