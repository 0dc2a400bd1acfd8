"""The keys of a batch: strings, of which numbered ones are made when somebody looks at them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, overload

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


class Keys:
    """The keys of a batch, read as a list of strings; ``list(keys)`` is one.

    Training loops hardly look at them. Where records have numbers for names, as rows of tables
    and of arrays do, making the strings of a small batch takes a fifth of its time: each costs
    0.1 µs to make and to free, with the interpreter's lock held, and more on the way from a worker
    process.

    It is no `Sequence` by inheritance: libraries that rebuild those of a batch item by item, to
    move them to a device, leave it as it is.

    Args:
        values: The strings; with a pattern the numbers that they are made of, int64 [n].
        pattern: What `str.format` makes a key of, such as ``{}`` or ``row{:08}``.
    """

    __slots__ = ("_pattern", "_values")

    def __init__(self, values: list[str] | NDArray[np.int64], pattern: str | None = None) -> None:
        self._values = values
        self._pattern = pattern

    def __len__(self) -> int:
        return len(self._values)

    @overload
    def __getitem__(self, at: int) -> str: ...
    @overload
    def __getitem__(self, at: slice) -> Keys: ...
    def __getitem__(self, at: int | slice) -> str | Keys:
        values: Any = self._values[at]
        if isinstance(at, slice):
            return Keys(values, self._pattern)
        made: str = values if self._pattern is None else self._pattern.format(int(values))
        return made

    def __iter__(self) -> Iterator[str]:
        values: Any = self._values
        if self._pattern is None:
            return iter(values)
        show = str if self._pattern == "{}" else self._pattern.format  # plain ones need no format
        return map(show, values.tolist())

    def __eq__(self, other: Any) -> bool:
        return isinstance(other, list | Keys) and list(self) == list(other)

    __hash__ = None  # type: ignore[assignment]

    def __add__(self, other: Any) -> list[str]:
        return [*self, *other]

    def __radd__(self, other: Any) -> list[str]:
        return [*other, *self]

    def __repr__(self) -> str:
        return repr(list(self))
