"""Limits of a cache: parsing of sizes, and the available memory."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated

from pydantic import AfterValidator
from pydantic_core import PydanticCustomError

_UNITS = ("", "K", "M", "G", "T")
_AMOUNT = re.compile(r"(\d+(?:\.\d+)?)\s*([KMGT]?)(i?)B?", re.IGNORECASE)


def parse_bytes(given: int | str) -> int:
    """Parse a number of bytes, ``4GB`` or ``500 MiB``; ValueError for anything else, and zero."""
    size_bytes = 0
    if found := _AMOUNT.fullmatch(str(given)):
        number, unit, binary = found.groups()
        size_bytes = int(float(number) * (1024 if binary else 1000) ** _UNITS.index(unit.upper()))
    if size_bytes < 1:
        raise PydanticCustomError("size", "an amount such as 4GB or 500MB")
    return size_bytes


Size = Annotated[int | str, AfterValidator(parse_bytes)]
"""A number of bytes in a config; see `parse_bytes`."""


def available_bytes(root: Path = Path("/")) -> int | None:
    """Return the memory that this process can take; None if unknown. Tests replace `root`."""
    limits = [1024 * size for size in _numbers(root / "proc/meminfo", "MemAvailable:")]
    for line in _lines(root / "proc/self/cgroup"):
        group = Path(root / "sys/fs/cgroup", line.removeprefix("0::/"))
        for folder in (group, *group.parents):
            for limit in _numbers(folder / "memory.max"):
                used = sum(_numbers(folder / "memory.current"))
                # The page cache counts as used, but is evicted when memory is short.
                cached = sum(_numbers(folder / "memory.stat", "inactive_file "))
                limits.append(limit - used + cached)
    return max(0, min(limits)) if limits else None


def _numbers(file: Path, start: str = "") -> list[int]:
    """Return the number after `start` in each line that begins with it."""
    found = (line.removeprefix(start).split()[0] for line in _lines(file) if line.startswith(start))
    return [int(number) for number in found if number.isdigit()]


def _lines(file: Path) -> list[str]:
    try:
        return file.read_text().splitlines()
    except OSError:  # no control groups of the second version
        return []
