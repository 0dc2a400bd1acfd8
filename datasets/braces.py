"""Patterns in braces, as shells expand them: ``{000..099}``, ``{a,b}``."""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import product

_INNERMOST = re.compile(r"\{([^{}]*)\}")
_RANGE = re.compile(r"(-?\d+)\.\.(-?\d+)")
_MOST = 1_000_000


def expand_braces(pattern: str) -> list[str]:
    """Every text that a pattern stands for, in its order.

    Braces that hold neither a range of numbers nor a comma stand for themselves. Numbers of a
    range are as wide as its wider end where one of them begins with a zero.

    Raises:
        ValueError: There are more than a million.
    """
    parts: list[list[str]] = []
    count, at = 1, 0
    for match in _INNERMOST.finditer(pattern):
        choices = list(_choices(match[1]))
        parts += [[pattern[at : match.start()]], choices or [match[0]]]
        count *= max(len(choices), 1)
        at = match.end()
        if count > _MOST:
            raise ValueError(f"{pattern!r} stands for more than {_MOST:,} names; give fewer")
    parts.append([pattern[at:]])
    return ["".join(chosen) for chosen in product(*parts)]


def _choices(inner: str) -> Iterator[str]:
    found = _RANGE.fullmatch(inner)
    if found is None:
        if "," in inner:
            yield from inner.split(",")
        return
    first, last = found.groups()
    if abs(int(last) - int(first)) >= _MOST:
        raise ValueError(f"{{{inner}}} stands for more than {_MOST:,} names; give fewer")
    padded = any(len(text.lstrip("-")) > 1 and text.lstrip("-")[0] == "0" for text in (first, last))
    width = max(len(first), len(last)) if padded else 0
    step = 1 if int(last) >= int(first) else -1
    for number in range(int(first), int(last) + step, step):
        yield f"{number:0{width}d}"
