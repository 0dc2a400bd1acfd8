"""Where names stand on a picture: beside what they name, and on no other name."""

from __future__ import annotations

from collections.abc import Iterable

Place = tuple[int, int, int, int]
"""Left, top, right, bottom; the last two excluded."""


class Placing:
    """The places of a picture that are taken.

    Args:
        height: Of the picture, in pixels.
        width: Likewise.
    """

    def __init__(self, height: int, width: int) -> None:
        self._height, self._width = height, width
        self._taken: list[Place] = []

    def take(self, place: Place) -> None:
        """Let nothing else stand at a place."""
        self._taken.append(place)

    def first_free(
        self, corners: Iterable[tuple[int, int]], width: int, height: int
    ) -> tuple[int, int] | None:
        """Take the first of some places that lies within the picture and is free.

        Args:
            corners: Left and top of each.
            width: Of what is to stand there.
            height: Likewise.

        Returns:
            Its corner, or None if there is no room.
        """
        for left, top in corners:
            place = (left, top, left + width, top + height)
            inside = left >= 0 and top >= 0 and place[2] <= self._width and place[3] <= self._height
            if inside and not any(_meet(place, other) for other in self._taken):
                self.take(place)
                return left, top
        return None


def _meet(a: Place, b: Place) -> bool:
    return a[0] < b[2] and b[0] < a[2] and a[1] < b[3] and b[1] < a[3]
