"""Keys of numbered records, made when somebody looks at them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, overload

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


class NumberedKeys:
    """The keys of a batch whose records have numbers for names: read it as a list of strings.

    Most training loops never look at keys, and making them takes a fifth of the time of a small
    batch: where there are many rows, each costs 0.1 µs to make and to free, with the interpreter's
    lock held, and more on the way from a worker process. ``list(keys)`` makes all of them.

    It is no `Sequence` by inheritance, so that libraries which rebuild those of a batch item by
    item leave it as it is.

    Args:
        pattern: What `str.format` makes a key of, such as ``{}`` or ``row{:08}``.
        numbers: The numbers, int64 [n].
    """

    __slots__ = ("_numbers", "_pattern")

    def __init__(self, pattern: str, numbers: NDArray[np.int64]) -> None:
        self._pattern = pattern
        self._numbers = numbers

    def __len__(self) -> int:
        return len(self._numbers)

    @overload
    def __getitem__(self, at: int) -> str: ...
    @overload
    def __getitem__(self, at: slice) -> NumberedKeys: ...
    def __getitem__(self, at: int | slice) -> str | NumberedKeys:
        if isinstance(at, slice):
            return NumberedKeys(self._pattern, self._numbers[at])
        return self._pattern.format(int(self._numbers[at]))

    def __iter__(self) -> Iterator[str]:
        show = str if self._pattern == "{}" else self._pattern.format  # plain ones need no format
        return map(show, self._numbers.tolist())

    def __eq__(self, other: Any) -> bool:
        return isinstance(other, list | NumberedKeys) and list(self) == list(other)

    __hash__ = None  # type: ignore[assignment]

    def __add__(self, other: Any) -> list[str]:
        return [*self, *other]

    def __radd__(self, other: Any) -> list[str]:
        return [*other, *self]

    def __repr__(self) -> str:
        return repr(list(self))
