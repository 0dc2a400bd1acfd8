"""Files with one flipped bit: a storage refuses them in one line, or reports bad records."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import TypeVar

import numpy as np

T = TypeVar("T")


def flipped(
    path: str | os.PathLike[str], places: Iterable[int], rng: np.random.Generator
) -> Iterator[int]:
    """Yield each of `places` while the file has a flipped bit in the byte at that place."""
    content = Path(path).read_bytes()
    for at in places:
        damaged = bytearray(content)
        damaged[int(at)] ^= 1 << int(rng.integers(8))
        Path(path).write_bytes(damaged)
        yield int(at)
    Path(path).write_bytes(content)


def unless_refused(read: Callable[[], T]) -> T | None:
    """Return the result of `read`, or None for a file that is refused in one line."""
    try:
        return read()
    except (ValueError, IndexError) as error:
        assert "\n" not in str(error)
        return None
