"""Files with a bit flipped: a storage refuses them in one line, or spoils what the bit is in."""

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
    """Each of `places`, while the file at `path` has one bit of the byte there flipped."""
    content = Path(path).read_bytes()
    for at in places:
        damaged = bytearray(content)
        damaged[int(at)] ^= 1 << int(rng.integers(8))
        Path(path).write_bytes(damaged)
        yield int(at)
    Path(path).write_bytes(content)


def unless_refused(read: Callable[[], T]) -> T | None:
    """What `read` gives; None where the file is refused, which is said in one line."""
    try:
        return read()
    except (ValueError, IndexError) as error:
        assert "\n" not in str(error)
        return None
