"""Limits of a cache: parsing of sizes, and the available memory."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from penstock.core.registry import checks
from penstock.core.user_errors import Problem

_UNITS = {"B": 0, "KB": 1, "MB": 2, "GB": 3, "TB": 4}
_AMOUNT = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([KMGT]i?B|B|%)\s*", re.IGNORECASE)


def parse_bytes(given: int | str, *, whole: int | None = None) -> int:
    """Parse a number of bytes: ``4GB``, ``500 MB``, ``40%``, a number.

    Args:
        given: Bytes, or a number with B, KB, MB, GB or TB (powers of 1,000), KiB to TiB (of 1,024),
            or, with `whole`, %.
        whole: The bytes that 100% means.

    Raises:
        ValueError: It is none of these, or zero.
    """
    size_bytes = 0.0
    if isinstance(given, int) and not isinstance(given, bool):
        size_bytes = given
    elif isinstance(given, str) and given.strip().isdigit():
        size_bytes = int(given)
    elif isinstance(given, str) and (found := _AMOUNT.fullmatch(given)):
        number, unit = float(found[1]), found[2].upper()
        if unit != "%":
            size_bytes = number * (1024 if "I" in unit else 1000) ** _UNITS[unit.replace("I", "")]
        elif whole is not None and number <= 100:
            size_bytes = max(number / 100 * whole, 1 if number else 0)
    if size_bytes < 1:
        share = ", or a share of the available memory such as 40%" if whole is not None else ""
        raise ValueError(
            f"dataset.cache.max_bytes: {given!r} given, expected an amount such as 4GB or "
            f"500MB{share}"
        )
    return int(size_bytes)


def available_bytes(root: Path = Path("/")) -> int | None:
    """Return the memory that this process can take without being killed; None if unknown.

    Tests replace `root`, the parent folder of ``proc`` and ``sys``.
    """
    limits = [
        int(line.split()[1]) * 1024
        for line in _lines(root / "proc/meminfo")
        if line.startswith("MemAvailable:")
    ]
    for line in _lines(root / "proc/self/cgroup"):
        number, controllers, path = line.split(":", 2)
        mount, names = root / "sys/fs/cgroup", ("memory.max", "memory.current")
        if number != "0":  # a hierarchy of version 1
            if "memory" not in controllers.split(","):
                continue
            mount, names = mount / "memory", ("memory.limit_in_bytes", "memory.usage_in_bytes")
        group = mount / path.lstrip("/")
        for folder in (group, *group.parents):  # from the process's own group to the root
            limit, usage = (_number(folder / name) for name in names)
            if limit is not None and usage is not None:
                # The page cache counts as used, but is evicted when memory is short.
                stat = _lines(folder / "memory.stat")
                cached = [line.split()[1] for line in stat if line.startswith("inactive_file ")]
                limits.append(limit - usage + int((cached or ["0"])[0]))
            if folder == mount:
                break
    return max(0, min(limits)) if limits else None


def _number(file: Path) -> int | None:
    lines = _lines(file)
    return int(lines[0]) if lines and lines[0].isdigit() else None


def _lines(file: Path) -> list[str]:
    try:
        return file.read_text().splitlines()
    except OSError:  # missing file: another version of control groups, or not Linux
        return []


@checks("cache/ram", "cache/disk")
def check_cache(config: Mapping[str, Any]) -> Iterator[Problem]:
    """Refuse invalid sizes, and a cache of records that are in memory already."""
    cache = config["dataset"]["cache"]
    in_memory = cache["_target_"] == "cache/ram"
    if in_memory and config["dataset"]["_target_"] == "dataset/eager":
        yield Problem("dataset/cache", "ram given, and dataset=eager keeps everything in memory; "
                      "type dataset/cache=none")  # fmt: skip
    try:
        parse_bytes(cache["max_bytes"], whole=1 << 40 if in_memory else None)
    except ValueError as error:
        text = str(error).partition(": ")[2]
        yield Problem("dataset.cache.max_bytes", f"{text}; type dataset.cache.max_bytes=4GB")
